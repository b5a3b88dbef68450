//! Public bug reports about block managers and prefix caches, as small inputs that could fail.

mod engine;
mod groups;
mod moves;
mod prefix;
mod sharing;
mod vllm;
mod window;
