// paging.wgsl — where a row of K or V lies: the only addressing on the device.
// Pools are segments `[num_blocks, heads, BLOCK_SIZE, UNITS]` of 16-byte units; `heads` counts the segment's KV heads.
// Twin      src/layout.rs: KvLayout::row_unit_offset

fn row_in_block(block: u32, heads: u32, head: u32, within: u32) -> u32 {
    return ((block * heads + head) * BLOCK_SIZE + within) * UNITS;
}

// First unit of the row in `slot` = block · BLOCK_SIZE + position % BLOCK_SIZE.
fn slot_row(slot: u32, heads: u32, head: u32) -> u32 {
    return row_in_block(slot / BLOCK_SIZE, heads, head, slot % BLOCK_SIZE);
}
