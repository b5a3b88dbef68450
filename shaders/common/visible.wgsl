// visible.wgsl — which keys a query sees. CAUSAL and WINDOW are prepended by the host.
// Twin      src/reference.rs; of splits, src/plan/reach.rs

// The keys that a query at `position` sees, of those from `begin` to `end`; none if the first is the second.
fn visible_keys(position: i32, window: u32, begin: u32, end: u32) -> vec2<u32> {
    var low = begin;
    var high = end;
    if (CAUSAL) { high = u32(clamp(position + 1, i32(begin), i32(end))); }
    if (WINDOW) { low = u32(clamp(position + 1 - i32(window), i32(begin), i32(end))); }
    return vec2<u32>(min(low, high), high);
}

fn sees(seen: vec2<u32>, key: u32) -> bool {
    // One comparison for both ends: before the first key, the difference wraps.
    return key - seen.x < seen.y - seen.x;
}

// Whether all that a query sees lies in one split, which then writes the query's result: there is nothing to merge. A
// query that is not causal may see keys past those of its tile, so its splits are always merged.
fn sees_one_split(position: i32, window: u32, split_tokens: u32) -> bool {
    if (!CAUSAL || position < 0) { return false; }
    let last = u32(position);
    return visible_keys(position, window, 0u, last + 1u).x / split_tokens == last / split_tokens;
}
