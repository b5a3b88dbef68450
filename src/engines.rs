#![doc = include_str!("engines.md")]
