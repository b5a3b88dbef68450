//! The kernels without a device: what their texts declare agrees with the host, every API takes them, and all lanes reach
//! what they must reach together.

mod block_shaders;
mod loops;
mod matrices;
mod memory;
mod rotary_and_states;
mod shader_text;
mod shaders;
mod sizes;
mod uniformity;
mod variants;
