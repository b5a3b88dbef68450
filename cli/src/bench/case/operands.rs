//! Where what a step reads and writes lies: in a buffer each, in one arena, or as columns of a fused projection.

use wgpu_paged_attention::gpu::{IoFormat, IoSlice};
use wgpu_paged_attention::testkit::{Gpu, SENTINEL, io_buffer, read_io};

use crate::bench::inputs::Placement;

/// Elements before each operand of an arena: fewer than an offset of a binding, so that none begins where a device would bind.
const ARENA_GAP: usize = 36;

/// What an operand holds.
pub(super) struct Contents {
    pub(super) values: Vec<f32>,
    /// Elements of a token.
    pub(super) row: usize,
    /// Its first column in a fused projection, if it is a part of one.
    pub(super) column: Option<usize>,
}

/// Rows of elements in a buffer.
#[derive(Debug)]
pub(super) struct Operand {
    buffer: wgpu::Buffer,
    place: Place,
    io_format: IoFormat,
}

/// Elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    first: usize,
    stride: Option<u32>,
    len: usize,
}

impl Operand {
    pub(super) fn io(&self) -> IoSlice<'_> {
        let bytes = |elements: usize| 4 * elements as u64 / u64::from(self.io_format.per_word());
        let Place { first, stride, len } = self.place;
        let slice = match stride {
            // Up to the end of the buffer, which is that of the last row or further on.
            Some(_) => self.buffer.slice(bytes(first)..),
            None => self.buffer.slice(bytes(first)..bytes(first + len)),
        };
        stride.map_or(IoSlice::new(slice), |stride| IoSlice::new(slice).with_token_stride(stride))
    }

    /// What it holds, where it has no stride; `None` if the device is lost.
    pub(super) fn read(&self, gpu: &Gpu) -> Option<Vec<f32>> {
        let Place { first, len, .. } = self.place;
        Some(read_io(gpu, &self.buffer, first + len, self.io_format)?.split_off(first).into_iter().take(len).collect())
    }
}

/// Makes the two operands of a step, in a projection `fused` elements wide where that is how they are placed.
pub(super) fn operands(
    gpu: &Gpu,
    placement: Placement,
    fused: usize,
    io_format: IoFormat,
    contents: [Contents; 2],
) -> [Operand; 2] {
    let (buffers, places) = lay_out(placement, fused, contents);
    let buffers: Vec<_> = buffers.iter().map(|values| io_buffer(gpu, "operands", values, io_format)).collect();
    places.map(|(buffer, place)| Operand { buffer: buffers[buffer].clone(), place, io_format })
}

/// The contents of all buffers, and for each operand its buffer and its place there.
fn lay_out(placement: Placement, fused: usize, contents: [Contents; 2]) -> (Vec<Vec<f32>>, [(usize, Place); 2]) {
    let mut buffers: Vec<Vec<f32>> = Vec::new();
    let mut projection = None;
    let places = contents.map(|Contents { values, row, column }| {
        let len = values.len();
        match (placement, column) {
            (Placement::Fused, Some(column)) => {
                let at = *projection.get_or_insert_with(|| {
                    buffers.push(vec![SENTINEL; len / row * fused]);
                    buffers.len() - 1
                });
                let rows = buffers[at].chunks_mut(fused).zip(values.chunks(row));
                rows.for_each(|(token, values)| token[column..column + row].copy_from_slice(values));
                (at, Place { first: column, stride: Some(fused as u32), len })
            }
            (Placement::Arena, _) => {
                if buffers.is_empty() {
                    buffers.push(Vec::new());
                }
                let arena = &mut buffers[0];
                let first = arena.len() + ARENA_GAP;
                arena.resize(first, SENTINEL);
                arena.extend(values);
                (0, Place { first, stride: None, len })
            }
            _ => {
                buffers.push(values);
                (buffers.len() - 1, Place { first: 0, stride: None, len })
            }
        }
    });
    (buffers, places)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Case, CaseInputs, Mode, ModelShape, Op, PassTimer};
    use wgpu_paged_attention::gpu::DeviceProfile;
    use wgpu_paged_attention::testkit::test_device;

    #[test]
    fn operands_lie_where_their_placement_says() {
        let contents = || {
            let values = |first: i32, len| (first..first + len).map(|value| value as f32).collect();
            [
                Contents { values: values(0, 4), row: 2, column: Some(1) },
                Contents { values: values(10, 6), row: 3, column: None },
            ]
        };
        let place = |first, stride, len| Place { first, stride, len };
        let (buffers, places) = lay_out(Placement::Compact, 4, contents());
        assert_eq!(buffers, [vec![0.0, 1.0, 2.0, 3.0], vec![10.0, 11.0, 12.0, 13.0, 14.0, 15.0]]);
        assert_eq!(places, [(0, place(0, None, 4)), (1, place(0, None, 6))]);
        let (buffers, places) = lay_out(Placement::Arena, 4, contents());
        assert_eq!((buffers.len(), buffers[0].len()), (1, 2 * ARENA_GAP + 10));
        assert_eq!(places, [(0, place(ARENA_GAP, None, 4)), (0, place(2 * ARENA_GAP + 4, None, 6))]);
        let (buffers, places) = lay_out(Placement::Fused, 4, contents());
        assert_eq!(buffers[0], [SENTINEL, 0.0, 1.0, SENTINEL, SENTINEL, 2.0, 3.0, SENTINEL]);
        assert_eq!(places, [(0, place(1, Some(4), 4)), (1, place(0, None, 6))]);
    }

    #[test]
    fn operations_are_right_wherever_their_operands_lie() {
        let Some(gpu) = test_device() else { return };
        let mut timer = PassTimer::new(&gpu).unwrap();
        for placement in [Placement::Compact, Placement::Arena, Placement::Fused] {
            let shape = ModelShape::custom(4, 2, 8).unwrap();
            let inputs = CaseInputs { placement, ..CaseInputs::new(shape, vec![9, 5], 1) };
            let case = Case::new(&gpu, &DeviceProfile::of(&gpu.device), &inputs, Mode::Paged).unwrap();
            // The append last: with K and V swapped it spoils what the other reads.
            for op in [Op::Decode, Op::Append] {
                let mut work = case.begin(op).unwrap();
                case.check(&work, &mut timer).unwrap_or_else(|error| panic!("{op} {placement:?}: {error}"));
                work.operands.swap(0, 1);
                assert!(case.check(&work, &mut timer).is_err(), "{op} {placement:?}: operands that were swapped");
            }
        }
    }
}
