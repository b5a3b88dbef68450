//! What an attention computes beyond the plain one: flags that its kernels are specialised for.

use std::fmt;

use crate::formats::KvDtype;
use crate::gpu::error::SpecError;
use crate::gpu::kernel::shape::Constants;
use crate::layout::KvLayout;

/// The type of queries, outputs and new rows in the caller's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IoFormat {
    /// IEEE single precision.
    #[default]
    F32,
    /// IEEE half precision, two elements to a word; heads must be of even width. Needs no device feature.
    F16,
}

impl IoFormat {
    /// Elements in a word of 4 bytes.
    pub fn per_word(self) -> u32 {
        match self {
            Self::F32 => 1,
            Self::F16 => 2,
        }
    }

    /// Refuses heads of which a word would belong to two.
    pub(crate) fn check_dims(self, layout: &KvLayout) -> Result<(), SpecError> {
        for (name, dim) in [("head_dim", layout.head_dim()), ("v_head_dim", layout.v_head_dim())] {
            if !dim.is_multiple_of(self.per_word()) {
                let problem = format!("is {dim}; f16 needs an even number, for two elements share a word");
                return Err(SpecError::new(name, problem));
            }
        }
        Ok(())
    }

    /// The storage format of the cache with the same elements, whose rounding serves both.
    pub(crate) fn kv_dtype(self) -> KvDtype {
        match self {
            Self::F32 => KvDtype::F32,
            Self::F16 => KvDtype::F16,
        }
    }

    /// The name used in files and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }
}

/// The options of an attention that change a kernel's text; one that is off is not in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    /// A query sees no key past its own.
    pub(crate) causal: bool,
    /// A query sees a limited number of keys.
    pub(crate) window: bool,
    /// Scores are capped.
    pub(crate) soft_cap: bool,
    /// Scores fall with the distance of the key.
    pub(crate) alibi: bool,
    /// A logit per head joins the denominator.
    pub(crate) sinks: bool,
    /// The log-sum-exp is written.
    pub(crate) write_lse: bool,
    /// The type of queries and outputs.
    pub(crate) io_format: IoFormat,
    /// Queries and outputs may lie in one buffer.
    pub(crate) shared_io: bool,
    /// Queries and outputs may begin at any word.
    pub(crate) word_io: bool,
    /// Query heads that have terms of their own: slopes or sinks; 0 if there are neither.
    pub(crate) head_terms: u32,
}

impl Variant {
    /// Causal attention in f32 without options.
    #[cfg(test)]
    pub(crate) const PLAIN: Self = Self {
        causal: true,
        window: false,
        soft_cap: false,
        alibi: false,
        sinks: false,
        write_lse: false,
        io_format: IoFormat::F32,
        shared_io: false,
        word_io: false,
        head_terms: 0,
    };

    pub(crate) fn add_to(&self, constants: &mut Constants) {
        let per_word = self.io_format.per_word();
        constants.set("IO_PER_WORD", per_word);
        constants.set("IO_WORDS", 4 / per_word);
        // An array has at least one element.
        constants.set("HEAD_TERMS", self.head_terms.max(1));
        for (name, value) in [
            ("CAUSAL", self.causal),
            ("WINDOW", self.window),
            ("SOFT_CAP", self.soft_cap),
            ("ALIBI", self.alibi),
            ("SINKS", self.sinks),
            ("WRITE_LSE", self.write_lse),
        ] {
            constants.set_flag(name, value);
        }
    }
}

impl fmt::Display for Variant {
    /// The options that are on, each after a space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, on) in [
            ("causal", self.causal),
            ("window", self.window),
            ("soft-cap", self.soft_cap),
            ("alibi", self.alibi),
            ("sinks", self.sinks),
            ("lse", self.write_lse),
            ("f16-io", self.io_format == IoFormat::F16),
            ("shared-io", self.shared_io),
            ("word-io", self.word_io),
        ] {
            if on {
                write!(f, " {name}")?;
            }
        }
        Ok(())
    }
}
