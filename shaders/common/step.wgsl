// step.wgsl — the words of one step, uploaded once for all layers, and the block tables they point to.
// Twin      src/plan/words.rs: StepHeader, Row

struct Row {
    kv_len: u32,        // keys that this query sees; 0 gives zeros
    table_base: u32,    // its block table: an element of `tables`
    split_start: u32,   // splits of the rows before it
    partial_start: u32, // splits of those rows before it that have more than one
}

struct StepHeader {
    num_rows: u32,
    num_slots: u32,
    num_updates: u32,
    num_splits: u32,
    split_tokens: u32,
    rows_base: u32,    // offsets count words from the start of `step`
    slots_base: u32,
    updates_base: u32,
}

@group(0) @binding(0) var<storage, read> step: array<u32>;

fn step_header() -> StepHeader {
    return StepHeader(step[0], step[1], step[2], step[3], step[4], step[5], step[6], step[7]);
}

fn step_row(header: StepHeader, idx: u32) -> Row {
    let at = header.rows_base + 4u * idx;
    return Row(step[at], step[at + 1u], step[at + 2u], step[at + 3u]);
}

// A linear index from a dispatch that was folded into two dimensions.
fn linear_index(group: vec3<u32>, groups: vec3<u32>) -> u32 {
    return group.y * groups.x + group.x;
}
