//! Two layers of attention between matrix products of burn, with a paged cache, against the same model with burn's own
//! attention over whole texts.

mod paged;

use std::error::Error;
use std::ops::Range;

use burn::backend::Wgpu;
use burn::backend::wgpu::CubeTensor;
use burn::tensor::activation::softmax;
use burn::tensor::wgpu::WgpuSetup;
use burn::tensor::{Bool, Device, Distribution, Int, Tensor, TensorData};
use paged::{
    COLUMNS, DECODED, HEAD_DIM, KV_WIDTH, NUM_KV_HEADS, NUM_Q_HEADS, PROMPTS, PagedAttention, Q_WIDTH, QKV_WIDTH, Qkv,
    ROPE_BASE, WRONG_COLUMNS,
};
use wgpu_paged_attention::gpu::Step;
use wgpu_paged_attention::reference::inverse_frequencies;

const HIDDEN: usize = 96;
const NUM_LAYERS: usize = 2;
/// Burn's rotation takes the device's sine and cosine, of which SwiftShader's are off by 1e-4.
const TOLERANCE: f32 = 1e-3;

struct Layer {
    /// `[HIDDEN, q | k | v]`.
    qkv: Tensor<2>,
    /// `[Q_WIDTH, HIDDEN]`.
    out: Tensor<2>,
}

struct Model {
    layers: Vec<Layer>,
}

impl Model {
    fn random(device: &Device) -> Self {
        let weight = |rows: usize, columns: usize| {
            // Sums of `rows` products stay near 1.
            let most = (3.0 / rows as f64).sqrt();
            Tensor::random([rows, columns], Distribution::Uniform(-most, most), device)
        };
        let layer = |_| Layer { qkv: weight(HIDDEN, QKV_WIDTH), out: weight(Q_WIDTH, HIDDEN) };
        Self { layers: (0..NUM_LAYERS).map(layer).collect() }
    }

    /// `[tokens, HIDDEN]` to the same; `attend` takes the layer's number and `[tokens, q | k | v]` to `[tokens, Q_WIDTH]`.
    fn forward(
        &self,
        mut x: Tensor<2>,
        mut attend: impl FnMut(usize, Tensor<2>) -> Result<Tensor<2>, Box<dyn Error>>,
    ) -> Result<Tensor<2>, Box<dyn Error>> {
        for (at, layer) in self.layers.iter().enumerate() {
            let attended = attend(at, x.clone().matmul(layer.qkv.clone()))?;
            x = x + attended.matmul(layer.out.clone());
        }
        Ok(x)
    }
}

/// A tensor's memory and where it lies in it.
fn memory(tensor: Tensor<2>) -> Result<CubeTensor, Box<dyn Error>> {
    let primitive = tensor.try_into_primitive::<Wgpu>().map_err(|error| format!("{error:?}"))?;
    // With fusion, it is a place in a queue, which is worked off first.
    #[cfg(feature = "fusion")]
    let primitive = primitive.client.clone().resolve_tensor_float::<burn::backend::wgpu::CubeBackend>(primitive);
    Ok(primitive)
}

/// Attention over the cache, from a tensor's memory into a tensor's memory.
fn attend_paged(
    paged: &PagedAttention,
    step: &Step,
    layer: usize,
    qkv: Tensor<2>,
    columns: [usize; 3],
) -> Result<Tensor<2>, Box<dyn Error>> {
    let [tokens, _] = qkv.dims();
    let out = Tensor::empty([tokens, Q_WIDTH], &qkv.device());
    // A clone has the same memory.
    let (qkv, written) = (memory(qkv)?, memory(out.clone())?);
    // A product's rows lie side by side; those of a transposed tensor would not.
    assert_eq!((qkv.meta.strides()[1], &written.meta.strides()[..]), (1, &[Q_WIDTH, 1][..]));
    let qkv = Qkv { memory: qkv.handle, token_stride: qkv.meta.strides()[0], columns };
    paged.layer(&written.client, step, layer as u32, &qkv, &written.handle)?;
    Ok(out)
}

/// Burn's own causal attention over a whole text.
fn attend_dense(qkv: Tensor<2>) -> Tensor<2> {
    let device = qkv.device();
    let [tokens, _] = qkv.dims();
    let heads = |first: usize, num_heads: usize| {
        let columns = qkv.clone().narrow(1, first, num_heads * HEAD_DIM);
        columns.reshape([tokens, num_heads, HEAD_DIM]).swap_dims(0, 1)
    };
    let group = NUM_Q_HEADS / NUM_KV_HEADS;
    let for_queries = |kv: Tensor<3>| {
        let each = kv.reshape([NUM_KV_HEADS, 1, tokens, HEAD_DIM]).repeat_dim(1, group);
        each.reshape([NUM_Q_HEADS, tokens, HEAD_DIM])
    };
    let q = rotate(heads(0, NUM_Q_HEADS));
    let k = for_queries(rotate(heads(Q_WIDTH, NUM_KV_HEADS)));
    let v = for_queries(heads(Q_WIDTH + KV_WIDTH, NUM_KV_HEADS));
    let scores = q.matmul(k.swap_dims(1, 2)) / (HEAD_DIM as f32).sqrt();
    let later = Tensor::<2, Bool>::tril_mask([tokens, tokens], 0, &device);
    let scores = scores.mask_fill(later.unsqueeze().repeat_dim(0, NUM_Q_HEADS), -1e30);
    softmax(scores, 2).matmul(v).swap_dims(0, 1).reshape([tokens, Q_WIDTH])
}

/// Rotary embedding of `[heads, tokens, HEAD_DIM]`, of which token `t` is at position `t`; element `i` goes with `i + HEAD_DIM / 2`.
fn rotate(x: Tensor<3>) -> Tensor<3> {
    let (device, [_, tokens, _]) = (x.device(), x.dims());
    let frequencies: Vec<f32> = inverse_frequencies(ROPE_BASE, HEAD_DIM).iter().map(|&one| one as f32).collect();
    let frequencies = Tensor::<2>::from_data(TensorData::new(frequencies, [1, HEAD_DIM / 2]), &device);
    let positions = Tensor::<1, Int>::arange(0..tokens as i64, &device).float().reshape([tokens, 1]);
    let angles: Tensor<3> = positions.matmul(frequencies).unsqueeze();
    let (cos, sin) = (angles.clone().cos(), angles.sin());
    let [first, second] = [0, HEAD_DIM / 2].map(|at| x.clone().narrow(2, at, HEAD_DIM / 2));
    let turned = first.clone() * cos.clone() - second.clone() * sin.clone();
    Tensor::cat(vec![turned, second * cos + first * sin], 2)
}

/// The model's outputs for all tokens of both texts.
fn run_paged(
    setup: &WgpuSetup,
    model: &Model,
    texts: &[Tensor<2>; 2],
    columns: [usize; 3],
) -> Result<[Tensor<2>; 2], Box<dyn Error>> {
    let paged = PagedAttention::new(setup, NUM_LAYERS as u32)?;
    let mut outputs = [vec![], vec![]];
    paged.run(|step, tokens| {
        let rows = texts.iter().zip(tokens).map(|(text, tokens)| text.clone().narrow(0, tokens.start, tokens.len()));
        let x = Tensor::cat(rows.collect(), 0);
        let y = model.forward(x, |layer, qkv| attend_paged(&paged, step, layer, qkv, columns))?;
        let parts = y.split_with_sizes(tokens.iter().map(Range::len).collect(), 0);
        outputs.iter_mut().zip(parts).for_each(|(output, part)| output.push(part));
        Ok(())
    })?;
    Ok(outputs.map(|parts| Tensor::cat(parts, 0)))
}

/// The largest difference; NaN if there is any.
fn difference(got: [Tensor<2>; 2], expected: &[Tensor<2>; 2]) -> Result<f32, Box<dyn Error>> {
    let [a, b] = [0, 1].map(|text| (got[text].clone() - expected[text].clone()).abs().into_data().try_to_vec::<f32>());
    let values = [a, b].into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| format!("{error:?}"))?.concat();
    Ok(values.into_iter().fold(0.0, |largest, value| if value > largest || value.is_nan() { value } else { largest }))
}

fn main() -> Result<(), Box<dyn Error>> {
    // Burn opens the device, with all features and limits of the adapter; its memory is configured as it comes.
    let (device, setup) = Device::wgpu_options().init_with_setup()?;
    device.seed(1);
    let model = Model::random(&device);
    let texts =
        PROMPTS.map(|prompt| Tensor::random([prompt + DECODED, HIDDEN], Distribution::Uniform(-1.0, 1.0), &device));

    let dense = |text: &Tensor<2>| model.forward(text.clone(), |_, qkv| Ok(attend_dense(qkv)));
    let expected = [dense(&texts[0])?, dense(&texts[1])?];
    let off = difference(run_paged(&setup, &model, &texts, COLUMNS)?, &expected)?;
    let name = setup.adapter.get_info().name;
    println!("{name}: at most {off:.1e} from burn's own attention");
    let wrong = difference(run_paged(&setup, &model, &texts, WRONG_COLUMNS)?, &expected)?;
    println!("with keys in the place of values: {wrong:.1e}, and so the comparison finds them");
    match off <= TOLERANCE && wrong > 100.0 * TOLERANCE {
        true => Ok(()),
        false => {
            Err(format!("the first should be at most {TOLERANCE}, the second more than a hundred times that").into())
        }
    }
}
