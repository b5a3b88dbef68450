//! The kernel variants that the static checks look at.

use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::gpu::{Exchange, Kernel, KvShape};

/// The exchanges that devices use: every subgroup size, and none.
pub const EXCHANGES: [Exchange; 7] = [
    Exchange::Subgroup { lanes: 4 },
    Exchange::Subgroup { lanes: 8 },
    Exchange::Subgroup { lanes: 16 },
    Exchange::Subgroup { lanes: 32 },
    Exchange::Subgroup { lanes: 64 },
    Exchange::Workgroup { lanes: 32 },
    Exchange::Workgroup { lanes: 64 },
];

/// Kernels over formats, head dims, groups, exchanges and flags. Group and head dim go round together, so that each
/// meets all exchanges while the number of kernels stays small.
pub fn variants() -> Vec<Kernel> {
    let mut kernels = vec![Kernel::TableUpdate];
    let head_dims = [1, 5, 8, 64, 80, 128, 256];
    let groups = [1, 4, 7, 8, 9, 71];
    for format in KvFormat::ALL {
        for (at, head_dim) in head_dims.into_iter().enumerate() {
            for block_size in [1, 16, 17] {
                kernels.push(Kernel::KvAppend { kv: KvShape { format, head_dim, block_size } });
            }
            for exchange in EXCHANGES {
                for flags in [at % 4, (at + 3) % 4] {
                    let group = if head_dim == 256 { [1, 8][flags % 2] } else { groups[(at + flags) % groups.len()] };
                    let kv = KvShape { format, head_dim, block_size: [16, 128, 5, 16][flags] };
                    let (paged, write_lse, split_tokens) = (flags % 2 == 0, flags / 2 == 0, [256, 37][flags / 2]);
                    kernels.push(Kernel::PagedDecode { kv, paged, group, exchange, write_lse, split_tokens });
                }
            }
        }
    }
    for head_dim in head_dims {
        for write_lse in [false, true] {
            kernels.push(Kernel::MergePartials { head_dim, write_lse });
        }
    }
    kernels
}
