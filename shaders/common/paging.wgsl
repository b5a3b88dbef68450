// paging.wgsl — where a row of K or V lies: the only addressing on the device.
// Pools are head shards `[num_blocks, heads, BLOCK_SIZE, K_ROW_UNITS]` of 16-byte units, and V_ROW_UNITS for V; `heads`
// counts the head shard's KV heads. These functions number the rows: times K_ROW_UNITS is K's first unit, times
// V_ROW_UNITS V's.
// Twin      src/layout.rs: KvLayout::row_index

fn row_in_block(block: u32, heads: u32, head: u32, within: u32) -> u32 {
    return (block * heads + head) * BLOCK_SIZE + within;
}

// The row in `slot` = block · BLOCK_SIZE + position % BLOCK_SIZE.
fn slot_row(slot: u32, heads: u32, head: u32) -> u32 {
    return row_in_block(slot / BLOCK_SIZE, heads, head, slot % BLOCK_SIZE);
}
