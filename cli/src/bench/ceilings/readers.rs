//! Kernels that read memory, each in another shape.

/// A reader: neighbours read units next to each other. Which shape is the fastest differs by driver.
pub(super) struct Shape {
    unit: &'static str,
    unit_bytes: u64,
    lanes: u64,
    rounds: u64,
    /// Whether compilers may know the number of rounds. One that unrolls a long loop takes long over it.
    unrolled: bool,
}

const fn shape(unit: &'static str, unit_bytes: u64, lanes: u64, rounds: u64, unrolled: bool) -> Shape {
    Shape { unit, unit_bytes, lanes, rounds, unrolled }
}

pub(super) const SHAPES: [Shape; 4] = [
    shape("vec4<u32>", 16, 64, 16, true),
    shape("vec2<u32>", 8, 64, 32, false),
    shape("u32", 4, 64, 64, false),
    shape("vec4<u32>", 16, 8, 256, false),
];
/// What the workgroups of every shape divide.
pub(super) const GRANULE: u64 = 32 << 10;
/// A reader writes if its sum is this, so that its reads are not optimised away. No sum of the source is that large.
pub(super) const MAGIC: u32 = 0x9e37_79b9;

impl Shape {
    pub(super) fn groups(&self, bytes: u64) -> u32 {
        (bytes / (self.unit_bytes * self.lanes * self.rounds)) as u32
    }

    pub(super) fn text(&self) -> String {
        let Self { unit, lanes, rounds, unrolled, .. } = self;
        let read = format!("sum ^= input[(group.x * {rounds}u + i) * {lanes}u + lane];");
        let reads = if *unrolled {
            format!("for (var i = 0u; i < {rounds}u; i++) {{ {read} }}")
        } else {
            format!(
                "let rounds = min(arrayLength(&output), {rounds}u);
    var i = 0u;
    loop {{ {read} continuing {{ i++; break if i >= rounds; }} }}"
            )
        };
        format!(
            "
@group(0) @binding(0) var<storage, read> input: array<{unit}>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
@compute @workgroup_size({lanes})
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    var sum = {unit}(0u);
    {reads}
    if (all(sum == {unit}({MAGIC}u))) {{ output[0] = 1u; }}
}}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::GPU_STREAM_BYTES;
    use super::*;

    #[test]
    fn workgroups_of_every_shape_divide_the_bytes_and_may_be_dispatched() {
        for shape in &SHAPES {
            assert_eq!(GRANULE % (shape.unit_bytes * shape.lanes * shape.rounds), 0, "{}", shape.text());
            assert!(shape.groups(GPU_STREAM_BYTES) <= 65_535, "{}", shape.text());
        }
    }
}
