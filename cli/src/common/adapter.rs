//! Which adapter.

use clap::Args;
use wgpu_paged_attention::testkit::{AdapterChoice, Gpu, GpuOptions};

use super::{Failure, Status};

#[derive(Debug, Args)]
pub struct AdapterArgs {
    /// Part of the adapter's name in any case, or its number in `devices` [default: the first].
    #[arg(long, value_name = "NAME|NUMBER", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub adapter: Option<String>,
    /// Refuse an adapter that computes on the CPU (exit status 3).
    #[arg(long)]
    pub require_gpu: bool,
}

impl AdapterArgs {
    pub fn choice(&self) -> AdapterChoice {
        AdapterChoice { name: self.adapter.clone(), require_gpu: self.require_gpu }
    }

    pub fn open(&self) -> Result<Gpu, Failure> {
        Gpu::open(&GpuOptions { adapter: self.choice(), ..GpuOptions::default() })
            .map_err(|error| Failure::new(Status::NoAdapter, error.to_string()))
    }
}
