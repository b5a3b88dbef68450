//! What can be recorded: each file checks the arguments of one operation and records its dispatches.

pub(super) mod append;
pub(super) mod attention;
mod begin_step;
mod blocks;
pub(super) mod class_kernel;
pub(super) mod queries;
pub(super) mod resize;
pub(super) mod rotary;
pub(super) mod spec;
mod staging;
pub(super) mod states;
pub(super) mod swap;
pub(super) mod transfer;
