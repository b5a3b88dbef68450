// q_shared.wgsl — queries in a buffer that outputs lie in as well, bound as these are. Same name as q_read.wgsl.

@group(2) @binding(1) var<storage, read_write> q: array<QueryUnit>;
