// visible.wgsl — which keys a query sees. CAUSAL and WINDOW are put in front by the host.
// Twin      src/reference.rs

// The keys that a query at `position` sees, of those from `begin` to `end`; none if the first is the second.
fn visible_keys(position: i32, window: u32, begin: u32, end: u32) -> vec2<u32> {
    var low = begin;
    var high = end;
    if (CAUSAL) { high = u32(clamp(position + 1, i32(begin), i32(end))); }
    if (WINDOW) { low = u32(clamp(position + 1 - i32(window), i32(begin), i32(end))); }
    return vec2<u32>(min(low, high), high);
}
