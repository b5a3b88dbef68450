// q_read.wgsl — queries in a buffer that no output lies in. Same name as q_shared.wgsl.

@group(2) @binding(1) var<storage, read> q: array<QueryUnit>;
