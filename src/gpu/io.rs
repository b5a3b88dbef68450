//! The caller's queries, keys, values and outputs: where they lie in which buffer, and whether two of them overlap.

use super::binding::binding_limit;
use super::compat;
use super::error::{ArgumentError, DeviceError, GpuError};
use super::profile::DeviceProfile;

/// One row of elements for every token of a step, in a buffer of the caller's.
///
/// A slice becomes one by itself: then its rows stand without gaps. With a stride they may be columns of something wider,
/// such as the `[tokens, q | k | v]` of a fused projection:
///
/// ```
/// # use wgpu_paged_attention::{gpu::IoSlice, wgpu};
/// # fn io<'a>(qkv: &'a wgpu::Buffer, q_width: u32, kv_width: u32) -> [IoSlice<'a>; 3] {
/// let width = q_width + 2 * kv_width;
/// let columns = |first: u32| IoSlice::new(qkv.slice(4 * u64::from(first)..)).with_token_stride(width);
/// [columns(0), columns(q_width), columns(q_width + kv_width)]
/// # }
/// ```
///
/// What lies between the rows is neither read nor written. The buffer needs [`wgpu::BufferUsages::STORAGE`]. The slice
/// may begin at any multiple of 4 bytes, and the stride be any number of whole words (so even in f16). But the queries
/// and the outputs of an attention are read and written four elements at a time where heads are multiples of four
/// elements wide: then their places and strides must be such multiples, too, or the spec have [a word's
/// alignment](crate::gpu::AttentionSpec::with_word_alignment).
#[derive(Clone, Copy, Debug)]
pub struct IoSlice<'a> {
    slice: wgpu::BufferSlice<'a>,
    token_stride: Option<u32>,
}

impl<'a> IoSlice<'a> {
    /// Rows without gaps, of which the first begins with the slice.
    pub fn new(slice: wgpu::BufferSlice<'a>) -> Self {
        Self { slice, token_stride: None }
    }

    /// Sets how many elements there are from the first of a row to the first of the next: at least those of a row. The
    /// slice has to reach to the end of the last row.
    #[must_use]
    pub fn with_token_stride(mut self, elements: u32) -> Self {
        self.token_stride = Some(elements);
        self
    }
}

impl<'a> From<wgpu::BufferSlice<'a>> for IoSlice<'a> {
    fn from(slice: wgpu::BufferSlice<'a>) -> Self {
        Self::new(slice)
    }
}

/// What a kernel expects of an [`IoSlice`].
#[derive(Clone, Copy, Debug)]
pub(super) struct RowShape {
    pub(super) rows: u64,
    /// Elements of a row.
    pub(super) row: u64,
    /// Elements of a word.
    pub(super) per_word: u32,
    /// Elements that places and strides are multiples of.
    pub(super) unit: u32,
}

/// An [`IoSlice`], checked, and the binding through which a kernel reaches it.
#[derive(Clone, Debug)]
pub(super) struct BoundRows<'a> {
    name: &'static str,
    /// From an offset that the device allows; to the end of the slice, whatever a step needs of it, so that the same slice
    /// is the same binding in every step.
    pub(super) binding: wgpu::BufferBinding<'a>,
    /// Units of the binding before the first row.
    pub(super) base: u32,
    /// Units from one row to the next.
    pub(super) stride: u32,
    span: Span,
}

/// Bytes of a buffer: `row` of them every `stride`, which is no less.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    row: u64,
    stride: u64,
    rows: u64,
}

impl<'a> BoundRows<'a> {
    /// Checks and binds rows; there is at least one, and it is not empty.
    pub(super) fn new(
        name: &'static str,
        io: IoSlice<'a>,
        shape: RowShape,
        profile: &DeviceProfile,
    ) -> Result<Self, GpuError> {
        let RowShape { rows, row, per_word, unit } = shape;
        let (slice, element) = (io.slice, u64::from(4 / per_word));
        let (offset, given) = (slice.offset(), compat::slice_bytes(&slice));
        let refuse = |problem: String| Err(ArgumentError::new(name, problem).into());
        if !slice.buffer().usage().contains(wgpu::BufferUsages::STORAGE) {
            return refuse(format!("lacks the usage {:?}; create the buffer with it", wgpu::BufferUsages::STORAGE));
        }
        let remedy = if unit > per_word { "move it, or make the spec with_word_alignment" } else { "move it" };
        if !offset.is_multiple_of(u64::from(unit) * element) {
            let bytes = u64::from(unit) * element;
            return refuse(format!("starts at byte {offset}, which is not a multiple of {bytes}; {remedy}"));
        }
        let stride = io.token_stride.map_or(row, u64::from);
        if stride < row {
            return refuse(format!("has a token stride of {stride} elements, but a token has {row}; raise it"));
        }
        if !stride.is_multiple_of(unit.into()) {
            return refuse(format!(
                "has a token stride of {stride} elements, which is not a multiple of {unit}; {remedy}"
            ));
        }
        let span = Span { start: offset, row: row * element, stride: stride * element, rows };
        let needed = span.bytes();
        if given < needed {
            let of = if stride == row { String::new() } else { format!(" for {rows} tokens every {stride} elements") };
            return refuse(format!("has {given} bytes, but {needed} are needed{of}"));
        }
        // What lies before the slice, from where it may be bound.
        let before = offset % u64::from(profile.offset_alignment.max(4));
        let limit = binding_limit(profile);
        if needed.saturating_add(before) > limit {
            return Err(DeviceError::Limit { what: name, needed: needed.saturating_add(before), limit }.into());
        }
        let size = before + given.min(limit - before) / 4 * 4;
        let binding =
            wgpu::BufferBinding { buffer: slice.buffer(), offset: offset - before, size: wgpu::BufferSize::new(size) };
        // Less than the words of a binding, which 32 bits number; a single row has no need of its stride.
        let base = (before / (u64::from(unit) * element)) as u32;
        Ok(Self { name, binding, base, stride: u32::try_from(stride / u64::from(unit)).unwrap_or(0), span })
    }

    /// Refuses a buffer that a dispatch would both read and write, which `remedy` helps against.
    pub(super) fn check_other_buffer(&self, written: &Self, remedy: &str) -> Result<(), ArgumentError> {
        if self.binding.buffer != written.binding.buffer {
            return Ok(());
        }
        let problem = format!(
            "and {} share a buffer; a dispatch cannot read and write the same buffer, so use two{remedy}",
            written.name
        );
        Err(ArgumentError::new(self.name, problem))
    }

    /// Refuses bytes that both have.
    pub(super) fn check_apart(&self, other: &Self) -> Result<(), ArgumentError> {
        if self.binding.buffer != other.binding.buffer || !self.span.overlaps(&other.span) {
            return Ok(());
        }
        let problem = format!(
            "and {} overlap in one buffer, where they have {} and {}; a dispatch needs bytes of its own for what it writes",
            other.name, self.span, other.span
        );
        Err(ArgumentError::new(self.name, problem))
    }

    /// Refuses a buffer that is a pool.
    pub(super) fn check_no_pool<'p>(
        &self,
        mut pools: impl Iterator<Item = (&'static str, &'p wgpu::Buffer)>,
    ) -> Result<(), ArgumentError> {
        match pools.find(|(_, pool)| *pool == self.binding.buffer) {
            None => Ok(()),
            Some((pool, _)) => {
                let problem = format!("and {pool} share a buffer; use one of your own");
                Err(ArgumentError::new(self.name, problem))
            }
        }
    }
}

impl Span {
    /// From the first to past the last.
    fn bytes(&self) -> u64 {
        self.rows.saturating_sub(1).saturating_mul(self.stride).saturating_add(self.row)
    }

    /// Whether a byte belongs to both.
    fn overlaps(&self, other: &Self) -> bool {
        let end = |span: &Self| span.start + span.bytes();
        if end(self) <= other.start || end(other) <= self.start {
            return false;
        }
        if self.stride == other.stride {
            // Rows `i` and `j` overlap if `i − j` strides lie between these two.
            let signed = |bytes: u64| bytes as i64;
            let (ahead, stride) = (signed(other.start) - signed(self.start), signed(self.stride));
            let low = (ahead - signed(self.row)).div_euclid(stride) + 1;
            let high = -(-(ahead + signed(other.row))).div_euclid(stride) - 1;
            return low.max(1 - signed(other.rows)) <= high.min(signed(self.rows) - 1);
        }
        // Both go up, so of two rows that lie apart the lower one is done with.
        let (mut a, mut b) = (0, 0);
        while a < self.rows && b < other.rows {
            let (mine, theirs) = (self.start + a * self.stride, other.start + b * other.stride);
            if mine + self.row <= theirs {
                a += 1;
            } else if theirs + other.row <= mine {
                b += 1;
            } else {
                return true;
            }
        }
        false
    }
}

impl std::fmt::Display for Span {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "bytes {}..{}", self.start, self.start + self.bytes())?;
        if self.stride == self.row { Ok(()) } else { write!(f, " ({} in every {})", self.row, self.stride) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    fn bytes(span: &Span) -> Vec<u64> {
        (0..span.rows).flat_map(|row| (0..span.row).map(move |byte| span.start + row * span.stride + byte)).collect()
    }

    #[test]
    fn two_spans_overlap_if_they_have_a_byte_in_common() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut met = [0; 4];
        for _ in 0..20_000 {
            let strides = [rng.random_range(1..9), rng.random_range(1..9)];
            let strides = if rng.random() { [strides[0]; 2] } else { strides };
            let [a, b] = strides.map(|stride| Span {
                start: rng.random_range(0..30),
                row: rng.random_range(1..=stride),
                stride,
                rows: rng.random_range(1..6),
            });
            let expected = bytes(&a).iter().any(|byte| bytes(&b).contains(byte));
            assert_eq!((a.overlaps(&b), b.overlaps(&a)), (expected, expected), "{a:?} {b:?}");
            met[usize::from(expected) + 2 * usize::from(a.stride == b.stride)] += 1;
        }
        assert!(met.iter().all(|&times| times > 1000), "{met:?}");
    }
}
