//! One layer of attention between kernels of cubecl, with a paged cache, against the f64 reference.

mod paged;

use std::error::Error;

use cubecl::Device;
use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;
use cubecl::wgpu::{AutoGraphicsApi, RuntimeOptions, WgpuDevice, WgpuSetup, try_init_setup};
use paged::{
    COLUMNS, DECODED, HEAD_DIM, KV_WIDTH, NUM_KV_HEADS, NUM_Q_HEADS, PROMPTS, PagedAttention, Q_WIDTH, QKV_WIDTH, Qkv,
    ROPE_BASE, WRONG_COLUMNS,
};
use wgpu_paged_attention::reference::{self, Heads, QueryRow, Rotary, Scoring, inverse_frequencies};

const HIDDEN: usize = 48;
const TOLERANCE: f64 = 1e-4;

/// `[rows, inner]` times `[inner, outer]`.
#[cube(launch)]
fn multiply(x: &[f32], weight: &[f32], y: &mut [f32], #[comptime] inner: usize, #[comptime] outer: usize) {
    if ABSOLUTE_POS < y.len() {
        let row = ABSOLUTE_POS / outer;
        let column = ABSOLUTE_POS % outer;
        let mut sum = 0.0f32;
        for at in 0..inner {
            sum += x[row * inner + at] * weight[at * outer + column];
        }
        y[ABSOLUTE_POS] = sum;
    }
}

/// A matrix on the host and, as cubecl has it, on the device.
struct Matrix {
    values: Vec<f32>,
    memory: Handle,
    inner: usize,
    outer: usize,
}

impl Matrix {
    /// Numbers of which sums of `inner` products stay near 1.
    fn random(client: &Client, seed: u64, inner: usize, outer: usize) -> Self {
        let most = (3.0 / inner as f32).sqrt();
        let values: Vec<f32> = random(seed, inner * outer).into_iter().map(|value| most * value).collect();
        let memory = client.create_from_slice(f32::as_bytes(&values));
        Self { values, memory, inner, outer }
    }

    fn on_device(&self, client: &Client, x: &Handle, rows: usize) -> Handle {
        let y = client.empty(rows * self.outer * size_of::<f32>());
        let buffer = |memory: &Handle, len: usize| {
            // SAFETY: each is as long as it was made.
            unsafe { BufferArg::from_raw_parts(memory.clone(), len) }
        };
        multiply::launch(
            client,
            CubeCount::Static((rows * self.outer).div_ceil(64) as u32, 1, 1),
            CubeDim::new_1d(64),
            buffer(x, rows * self.inner),
            buffer(&self.memory, self.inner * self.outer),
            buffer(&y, rows * self.outer),
            self.inner,
            self.outer,
        );
        y
    }

    fn on_host(&self, x: &[f64]) -> Vec<f64> {
        let sum = |column: usize| {
            let weights = self.values.iter().skip(column).step_by(self.outer);
            x.iter().zip(weights).map(|(x, &weight)| x * f64::from(weight)).sum()
        };
        (0..self.outer).map(sum).collect()
    }
}

/// Numbers between -1 and 1 that depend on the seed only.
fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

struct Layer {
    qkv: Matrix,
    out: Matrix,
}

/// The layer's outputs for all tokens of both texts, `[tokens, HIDDEN]` of each.
fn run_paged(
    setup: &WgpuSetup,
    client: &Client,
    layer: &Layer,
    texts: &[Vec<f32>; 2],
    columns: [usize; 3],
) -> Result<[Vec<f32>; 2], Box<dyn Error>> {
    let paged = PagedAttention::new(setup, 1)?;
    let mut outputs = [vec![], vec![]];
    paged.run(|step, tokens| {
        let [a, b] = [0, 1].map(|text| &texts[text][tokens[text].start * HIDDEN..tokens[text].end * HIDDEN]);
        let x = client.create_from_slice(f32::as_bytes(&[a, b].concat()));
        let num_rows = step.num_rows() as usize;
        let qkv = Qkv { memory: layer.qkv.on_device(client, &x, num_rows), token_stride: QKV_WIDTH, columns };
        let attended = client.empty(num_rows * Q_WIDTH * size_of::<f32>());
        paged.layer(client, step, 0, &qkv, &attended)?;
        let y = client.read_one(layer.out.on_device(client, &attended, num_rows))?;
        let (first, second) = f32::from_bytes(&y).split_at(a.len());
        outputs[0].extend_from_slice(first);
        outputs[1].extend_from_slice(second);
        Ok(())
    })?;
    Ok(outputs)
}

/// What a text should give, in f64.
fn expected(layer: &Layer, text: &[f32]) -> Vec<f64> {
    let inv_freq = inverse_frequencies(ROPE_BASE, HEAD_DIM);
    let rotary = Rotary::new(false, &inv_freq);
    let rows = text.chunks(HIDDEN).map(|x| layer.qkv.on_host(&x.iter().map(|&x| x.into()).collect::<Vec<_>>()));
    let rotated = rows.zip(0..).map(|(row, position)| {
        let (turned, v) = row.split_at(Q_WIDTH + KV_WIDTH);
        let single = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<_>>();
        let turned =
            turned.chunks(HEAD_DIM).flat_map(|head| single(&reference::rotate(&rotary, &single(head), position)));
        turned.chain(single(v)).collect::<Vec<f32>>()
    });
    let rows: Vec<_> = rotated.collect();
    let heads = Heads::new(NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM);
    let scoring = Scoring::new(1.0 / (HEAD_DIM as f64).sqrt());
    let head = |position: usize, first: usize, head: usize| &rows[position][first + head * HEAD_DIM..][..HEAD_DIM];
    let attend = |token: usize| {
        let query = QueryRow::newest(token + 1);
        let k = |position, at| head(position, Q_WIDTH, at);
        let v = |position, at| head(position, Q_WIDTH + KV_WIDTH, at);
        reference::attend(&heads, &scoring, &rows[token][..Q_WIDTH], query, k, v).output
    };
    (0..rows.len()).flat_map(|token| layer.out.on_host(&attend(token))).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    // cubecl opens the device, with all features and limits of the adapter; its memory is configured as it comes.
    let device = WgpuDevice::default();
    let setup = try_init_setup::<AutoGraphicsApi>(&device, RuntimeOptions::try_default()?)?;
    let client = Device::Wgpu(device).client();
    let layer =
        Layer { qkv: Matrix::random(&client, 1, HIDDEN, QKV_WIDTH), out: Matrix::random(&client, 2, Q_WIDTH, HIDDEN) };
    let texts = PROMPTS.map(|prompt| random(prompt as u64, (prompt + DECODED) * HIDDEN));

    let expected = texts.each_ref().map(|text| expected(&layer, text));
    let compare = |columns| -> Result<_, Box<dyn Error>> {
        let got = run_paged(&setup, &client, &layer, &texts, columns)?.concat();
        Ok(reference::compare(&got, &expected.concat(), TOLERANCE, TOLERANCE))
    };
    let off = compare(COLUMNS)??;
    println!("{}: at most {off:.1e} from the f64 reference", setup.adapter.get_info().name);
    match compare(WRONG_COLUMNS)? {
        Ok(_) => Err("keys in the place of values are not found".into()),
        Err(difference) => {
            println!("keys in the place of values are found: {difference}");
            Ok(())
        }
    }
}
