//! The program as its users meet it: arguments in, text, files and exit status out.

mod blocks;
mod compare;
mod golden;
mod plan;
mod program;
mod replay;
mod tune;
