//! Plain values that specs, kernels and recordings share.

use std::fmt;
use std::sync::Arc;

use crate::formats::KvDtype;

/// What blocks are overwritten with when they are cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ClearValue {
    /// Zeros: nothing is left of what a block held.
    #[default]
    Zeros,
    /// Ones in every bit, which are NaN in every format: for tests, because a read of a slot that was never written then
    /// shows.
    Poison,
}

impl ClearValue {
    /// The word that is written.
    pub const fn word(self) -> u32 {
        match self {
            Self::Zeros => 0,
            Self::Poison => u32::MAX,
        }
    }
}

impl fmt::Display for ClearValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Zeros => "zeros",
            Self::Poison => "poison",
        })
    }
}

/// Which elements of a head form a pair, of the `dims` that are rotated. It is a matter of the weights: the same model has
/// one style in one file and the other in another, and the wrong one gives fluent nonsense, not an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RotaryStyle {
    /// Elements `2i` and `2i + 1`: weights as Meta publishes Llama, llama2.c's, GGUF files of the architecture `llama`,
    /// GPT-J.
    Interleaved,
    /// Elements `i` and `i + dims / 2`: weights in Hugging Face's format, Llama's included, and GPT-NeoX; GGUF files of
    /// Qwen, Gemma and Phi.
    HalfSplit,
}

/// Which pairs of a head are turned by which of a token's three positions: M-RoPE, for models that see images and videos.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MropeSections {
    pairs: [u32; 3],
    interleaved: bool,
}

impl MropeSections {
    /// So many pairs for time, for height and for width, run after run: Hugging Face's `mrope_section`.
    pub fn new(pairs: [u32; 3]) -> Self {
        Self { pairs, interleaved: false }
    }

    crate::setters::setters! {
        /// Sets whether the pairs are dealt out instead, as in Qwen3-VL (`mrope_interleaved`): of every three, one each for
        /// time, height and width, as far as theirs reach; time has what is left.
        with_interleaved(interleaved: bool);
    }

    /// The pairs for time, for height and for width.
    pub fn pairs(&self) -> [u32; 3] {
        self.pairs
    }

    /// Whether the pairs are dealt out.
    pub fn is_interleaved(&self) -> bool {
        self.interleaved
    }

    /// Whose position turns a pair: 0 for time, 1 for height, 2 for width.
    pub fn axis(&self, pair: u32) -> usize {
        let [time, height, width] = self.pairs;
        let reaches = |pairs: u32| u64::from(pair) < 3 * u64::from(pairs);
        match (self.interleaved, pair % 3) {
            (false, _) if pair < time => 0,
            (false, _) => 1 + usize::from(u64::from(pair) >= u64::from(time) + u64::from(height)),
            (true, 1) if reaches(height) => 1,
            (true, 2) if reaches(width) => 2,
            (true, _) => 0,
        }
    }
}

/// What a kernel that rotates is specialised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RotaryShape {
    /// Which elements form pairs.
    pub style: RotaryStyle,
    /// How many elements of a head are rotated.
    pub dims: u32,
    /// Which position turns which pair, if there are three.
    pub sections: Option<MropeSections>,
}

impl fmt::Display for RotaryShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let style = match self.style {
            RotaryStyle::Interleaved => "interleaved",
            RotaryStyle::HalfSplit => "half-split",
        };
        write!(f, "{style}{}", self.dims)?;
        let Some(MropeSections { pairs: [time, height, width], interleaved }) = self.sections else { return Ok(()) };
        write!(f, " {}{time}-{height}-{width}", if interleaved { "dealt" } else { "sections" })
    }
}

/// What becomes of a row of K, or of a query, before it is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct RowChange {
    /// It is divided by its root mean square and weighted; first.
    pub norm: bool,
    /// Its pairs are turned.
    pub rotary: Option<RotaryShape>,
}

impl RowChange {
    /// Whether nothing becomes of it.
    pub(crate) fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for RowChange {
    /// Each after a space.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.norm { " norm" } else { "" })?;
        self.rotary.map_or(Ok(()), |rotary| write!(f, " {rotary}"))
    }
}

/// In which order another engine's pool holds the rows of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExternalOrder {
    /// `[num_blocks, block_size, num_kv_heads, head_dim]`: vLLM's flash layout, FlashInfer's NHD, CANN's ND.
    TokenMajor,
    /// `[num_blocks, num_kv_heads, block_size, head_dim]`: FlashInfer's HND, CANN's BNSD.
    HeadMajor,
}

/// The elements of another engine's pool; they stand without gaps, those of 16 bits two to a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ExternalElement {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of an f32.
    Bf16,
}

impl ExternalElement {
    /// The storage format of our own with the same elements, whose conversions serve both.
    pub(crate) fn format(self) -> KvDtype {
        match self {
            Self::F32 => KvDtype::F32,
            Self::F16 => KvDtype::F16,
            Self::Bf16 => KvDtype::Bf16,
        }
    }

    /// Elements of a 32-bit word.
    pub(crate) fn per_word(self) -> u32 {
        match self {
            Self::F32 => 1,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How another engine lays out its pools. Heads, widths and block size are those of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExternalLayout {
    /// Order of the rows.
    pub order: ExternalOrder,
    /// What a row consists of.
    pub element: ExternalElement,
}

impl fmt::Display for ExternalLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let order = match self.order {
            ExternalOrder::TokenMajor => "token-major",
            ExternalOrder::HeadMajor => "head-major",
        };
        write!(f, "{} {order}", self.element.format())
    }
}

/// Tells caches apart, whatever their shape.
#[derive(Clone, Debug, Default)]
pub(super) struct Identity(Arc<()>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
