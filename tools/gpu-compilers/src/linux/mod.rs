//! The tool: Mesa's drivers for devices that are not there run on Linux.

mod bounds;
mod chips;
mod command;
mod dxc;
mod grid;
mod listing;
mod measure;
mod page;
mod plant;
mod row;
mod texts;
mod translate;
mod vulkan;

pub use command::main;
