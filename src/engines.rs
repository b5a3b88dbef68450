//! How the fields of vLLM, FlashInfer and CANN map to ours. There is no code here.
//!
//! Read from their sources in 2026. `B` sequences, `T` query tokens, `M` columns, `NB` blocks of `BS` tokens, `H` KV heads
//! of `D` elements.
//!
//! # Tables of a step
//!
//! All of it goes into [`RawTables`](crate::plan::RawTables). Index arrays are `u32` here, where -1 has no meaning, and
//! are read in place: `bytemuck::cast_slice` turns an `i32` array into one, and what was negative is then refused as too
//! large.
//!
//! | ours | vLLM | FlashInfer | CANN |
//! |---|---|---|---|
//! | [`Tables::Dense`] `block_table`, `max_blocks` | `block_table` `[B, M]` | – | `blockTables`, `block_table` `[B, M]` |
//! | `seq_lens`, new tokens **included** | `seq_lens`, `seqused_k` | – | `contextLens`, `actual_seq_lengths_kv`; on the host already |
//! | [`Tables::Csr`] `indptr`, `indices`, `last_page_len`, the state **after** the append | – | `kv_indptr`, `kv_indices`, `kv_last_page_len`; `len = BS · (pages − 1) + last` | – |
//! | `cu_seqlens_q` `[B + 1]`, from 0 on | `cu_seqlens_q` | `qo_indptr` | `actual_seq_lengths` of TND `[B]`, cumulative: prepend a **0** |
//! | [`Append::Slots`], `block · BS + offset` | `slot_mapping`, `i64` | – | `slot_indices`, `slot_mapping`, `i32` or `i64`: widen to `i64` |
//! | [`Append::Positions`] | – | `batch_indices`, `positions`, as `get_batch_indices_positions` gives them | – |
//! | padding of an append: -1, other negative numbers are refused | negative slots | none; -1 past the end of `batch_indices` | negative slots |
//! | unused columns of a table | never read | there are none | never read |
//!
//! ONNX Runtime, OpenVINO and FlashAttention count `past_seqlens`, `past_lens` and `cache_seqlens` **without** the new
//! tokens: add them.
//!
//! # Attention
//!
//! | ours | vLLM | FlashInfer | CANN |
//! |---|---|---|---|
//! | scale of `q · k`, `1/√D` unless given | `softmax_scale`, `scale` | `sm_scale` | `scale_value`, `scale`, `qkScale` |
//! | causal, aligned to the last key | `causal` | `causal` | `sparse_mode` 3 |
//! | window `W`: the key of a query's own position and the `W − 1` before it; none is `None` | `window_size` `(W − 1, 0)` | `window_left = W − 1`; −1 is none | `sparse_mode` 4 with `pre_tokens`, and `next_tokens` 0 |
//! | soft cap `c · tanh(s / c)` after the scale, **before** mask and ALiBi; none is `None` | `softcap`, the same; 0 is none | `logits_soft_cap`, **after** ALiBi: not the same if both are set; 0 is none | – |
//! | ALiBi `slope · (key − query)` in positions of the sequence | `alibi_slopes`, the same where attention is causal; FlashAttention takes the distance's magnitude | `key − query index`, without the offset of the queries: the same output, another log-sum-exp | a mask that the caller makes |
//! | sink: a logit per query head that joins the denominator only | `sinks` | `sinks` | `learnable_sink` |
//! | log-sum-exp, **natural**, `[T, num_q_heads]`; −∞ without a key | natural, `[num_q_heads, T]` where states are merged | base **2**: ours is theirs times ln 2 | natural; **+∞** without a key |
//! | no visible key: zeros | zeros | – | zeros |
//!
//! # Rotary embedding and states
//!
//! | ours | theirs |
//! |---|---|
//! | [`RotaryStyle::HalfSplit`] | weights in Hugging Face's format; vLLM's `is_neox_style`, FlashInfer's `ROPE_LLAMA` and `interleave = false` |
//! | [`RotaryStyle::Interleaved`] | weights of Meta, of llama2.c and in GGUF files of `llama`; GPT-J's; FlashInfer's `interleave = true` |
//! | [`RotarySpec::with_base`], `dims` of [`RotarySpec::new`] | `rope_theta`, `rotary_dim` |
//! | [`RotarySpec::from_inv_freq`], radians per position | `1 / rope_scale` and other scalings, multiplied into it |
//! | [`StateMerger::merge`], natural logarithms, `lse` `[T, num_q_heads]` | vLLM's `merge_attn_states`, `lse` `[num_q_heads, T]`; FlashInfer's `merge_state_in_place`, base 2 |
//!
//! # Pools
//!
//! [`KvCache::import_pool`] and [`KvCache::export_pool`] take one layer's K and V in f32, f16 or bf16.
//!
//! | theirs | [`ExternalOrder`] | K and V |
//! |---|---|---|
//! | vLLM `[2, NB, BS, H, D]` | `TokenMajor` | one buffer, V from the middle on |
//! | vLLM `[NB, 2, BS, H, D]`, FlashInfer NHD `[NB, 2, BS, H, D]` | `TokenMajor` | one buffer, V from one block later on; see [`ExternalPool`] |
//! | FlashInfer NHD as a pair, CANN ND and BSND `[NB, BS, H, D]` | `TokenMajor` | two buffers |
//! | FlashInfer HND `[NB, 2, H, BS, D]` | `HeadMajor` | one buffer, as above |
//! | FlashInfer HND as a pair, CANN BNSD `[NB, H, BS, D]` | `HeadMajor` | two buffers |
//! | vLLM's `[NB, H, D/x, BS, x]`, CANN's NZ, pools in 8 bits | – | not supported |
//!
//! # Block managers
//!
//! A [`CacheManager`] hands out, frees and evicts blocks in the orders that vLLM's host tests record, its block 0 apart, which
//! is never used there. These things are different:
//!
//! | | ours | vLLM |
//! |---|---|---|
//! | a request that finds blocks, but has no room for the rest | has taken what it found; once given back, these count as just used. [`can_admit`] asks without taking | takes nothing |
//! | when a full block can be found | when its step is committed | when its slots are allocated |
//! | images | a text has one [`Domain`]: with another image, no block is shared | every block has keys: those before the image are shared |
//! | windows | one table for all layers, and a text is found from its first block on | a table for each group of layers; there the last window of blocks suffices |
//! | a request that needs results for the whole prompt | [`create_sequence`], which does not look | `skip_reading_prefix_cache` |
//! | a drafting head that needs the last block computed (EAGLE) | [`truncate`] what was found by a block | found blocks without the last |
//!
//! [`CacheManager`]: crate::blocks::CacheManager
//! [`Domain`]: crate::blocks::Domain
//! [`can_admit`]: crate::blocks::CacheManager::can_admit
//! [`create_sequence`]: crate::blocks::CacheManager::create_sequence
//! [`truncate`]: crate::blocks::CacheManager::truncate
//! [`Tables::Dense`]: crate::plan::Tables::Dense
//! [`Tables::Csr`]: crate::plan::Tables::Csr
//! [`Append::Slots`]: crate::plan::Append::Slots
//! [`Append::Positions`]: crate::plan::Append::Positions
//! [`KvCache::import_pool`]: crate::gpu::KvCache::import_pool
//! [`KvCache::export_pool`]: crate::gpu::KvCache::export_pool
//! [`RotarySpec::from_inv_freq`]: crate::gpu::RotarySpec::from_inv_freq
//! [`RotarySpec::new`]: crate::gpu::RotarySpec::new
//! [`RotarySpec::with_base`]: crate::gpu::RotarySpec::with_base
//! [`RotaryStyle::HalfSplit`]: crate::gpu::RotaryStyle::HalfSplit
//! [`RotaryStyle::Interleaved`]: crate::gpu::RotaryStyle::Interleaved
//! [`StateMerger::merge`]: crate::gpu::StateMerger::merge
//! [`ExternalOrder`]: crate::gpu::ExternalOrder
//! [`ExternalPool`]: crate::gpu::ExternalPool
