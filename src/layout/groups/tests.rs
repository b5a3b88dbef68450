use super::*;
use crate::config::CacheConfig;
use crate::error::ConfigError;
use crate::formats::KvDtype;

/// A layer after `between` others, over and over: `full` and then `windowed`, or the other way round.
fn every(layers: usize, period: usize, full: LayerKind, windowed: LayerKind) -> Vec<LayerKind> {
    (0..layers).map(|layer| if layer % period == period - 1 { full } else { windowed }).collect()
}

fn layout(layers: &[LayerKind]) -> KvLayout {
    CacheConfig::of_layers(layers).with_num_blocks(100).with_max_seq_len(131_072).layout().unwrap()
}

fn windows(layout: &KvLayout) -> Vec<Option<u32>> {
    layout.groups().iter().map(KvLayout::window).collect()
}

/// 62 layers, every sixth of which sees everything: 10 and 52. 16 KV heads of 128 elements in half precision.
#[test]
fn gemma_3_27b_has_seven_groups_of_ten() {
    let kind = LayerKind::new(16, 128);
    let layout = layout(&every(62, 6, kind, kind.with_window(1024)));
    assert_eq!((layout.num_layers(), layout.num_groups(), layout.layers_per_group()), (62, 7, 10));
    assert_eq!(windows(&layout)[..2], [None, Some(1024)]);
    let counts: Vec<u32> = layout.groups().iter().map(KvLayout::num_layers).collect();
    assert_eq!(counts, [10, 10, 10, 10, 10, 10, 2]);
    // The published size of a token: 62 layers, K and V, 16 heads, 128 elements, 2 bytes.
    assert_eq!(layout.bytes_per_token(), 62 * 2 * 16 * 128 * 2);
    assert_eq!(layout.block_bytes(), 16 * 10 * 2 * 16 * 128 * 2);
    assert_eq!((layout.total_bytes(), layout.layer_bytes()), (100 * layout.block_bytes(), 10 * layout.block_bytes()));
    assert_eq!(layout.layers_of(0).collect::<Vec<_>>(), (0..10).map(|n| 6 * n + 5).collect::<Vec<_>>());
    assert_eq!(layout.layers_of(1).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]);
    assert_eq!(layout.place(60), Some(LayerPlace { group: 6, place: 0 }));
    assert_eq!(layout.place(61), Some(LayerPlace { group: 6, place: 1 }));
    assert_eq!(layout.place(62), None);
}

#[test]
fn models_of_two_kinds_waste_few_places() {
    let shape = |layers, period, kind: LayerKind, window| {
        let layout = layout(&every(layers, period, kind, kind.with_window(window)));
        (layout.layers_per_group(), windows(&layout))
    };
    let (full, kind) = (None, LayerKind::new(8, 64));
    assert_eq!(shape(24, 2, kind, 128), (12, vec![full, Some(128)]), "GPT-OSS-20B");
    assert_eq!(shape(36, 2, kind, 128), (18, vec![full, Some(128)]), "GPT-OSS-120B");
    assert_eq!(shape(48, 4, LayerKind::new(8, 128), 8192), (12, [vec![full], vec![Some(8192); 3]].concat()), "Llama 4");
    assert_eq!(shape(26, 6, LayerKind::new(1, 256), 512), (4, [vec![full], vec![Some(512); 6]].concat()), "Gemma 3 1B");
    assert_eq!(shape(42, 2, LayerKind::new(8, 256), 4096), (21, vec![full, Some(4096)]), "Gemma 2 9B");
}

/// Full layers with half the heads of twice the width, and a quarter of the bytes for one kind: blocks of equal bytes.
#[test]
fn kinds_of_other_shapes_have_other_blocks_of_as_many_bytes() {
    let (wide, narrow) = (LayerKind::new(16, 256).with_window(1024), LayerKind::new(4, 512));
    let layout = layout(&every(60, 6, narrow, wide));
    assert_eq!((layout.layers_per_group(), layout.num_groups()), (10, 6));
    // The reference group is the one without a window; the other has the configured block size.
    let [reference, windowed, ..] = layout.groups() else { panic!("{layout:?}") };
    assert_eq!((reference.block_size(), reference.num_kv_heads(), reference.head_dim()), (32, 4, 512));
    assert_eq!((windowed.block_size(), windowed.num_kv_heads(), windowed.head_dim()), (16, 16, 256));
    assert_eq!(reference.block_bytes(), windowed.block_bytes());
    assert_eq!(layout.blocks_for(100), 4);
    assert_eq!(windowed.blocks_for(100), 7);
    // Both are cut into as many head shards of the same bytes: 4 and 16 heads into two or four.
    let whole = reference.k_shard_bytes(4);
    assert_eq!(whole, windowed.k_shard_bytes(16));
    for (limit, shards) in [(whole, 1), (whole - 1, 2), (whole / 2 - 1, 4)] {
        let cut = layout.group_head_shards(limit).unwrap();
        assert_eq!(
            (cut[0].count, cut[1].count, cut[0].bytes, cut[1].bytes),
            (shards, shards, whole / u64::from(shards), cut[0].bytes)
        );
        assert_eq!(layout.head_shards(limit).unwrap(), cut[0]);
    }
    assert!(matches!(layout.group_head_shards(whole / 4 - 1), Err(LayoutError::HeadTooLarge { .. })));
    assert_eq!(layout.with_num_blocks(7).groups().iter().map(KvLayout::num_blocks).max(), Some(7));
}

#[test]
fn heads_that_cannot_be_cut_alike_are_refused() {
    let layout = layout(&[LayerKind::new(6, 64), LayerKind::new(4, 96).with_window(9)]);
    assert_eq!(layout.group_head_shards(layout.k_shard_bytes(3)).unwrap().iter().map(|cut| cut.count).max(), Some(2));
    // A third of the bytes: 3 divides 6 and not 4.
    let limit = layout.k_shard_bytes(2);
    let error = layout.group_head_shards(limit).unwrap_err();
    assert!(matches!(error, LayoutError::UnlikeHeads { heads: 4, other: 6, needed: 4, .. }), "{error}");
}

#[test]
fn unlike_windows_alone_make_groups_and_like_layers_one() {
    let kind = LayerKind::new(2, 64);
    let mixed = layout(&[kind.with_window(10), kind.with_window(30), kind.with_window(10), kind.with_window(30)]);
    assert_eq!((windows(&mixed), mixed.layers_per_group()), (vec![Some(30), Some(10)], 2));
    let alike = layout(&[kind.with_window(10); 5]);
    assert_eq!((alike.num_groups(), alike.layers_per_group(), alike.window()), (1, 5, Some(10)));
    let uniform = CacheConfig::new(5, 2, 64).with_window(10).with_num_blocks(100).with_max_seq_len(131_072);
    assert_eq!(uniform.layout().unwrap(), alike);
    // V that is as wide as K need not be said.
    let said = layout(&[kind, kind.with_v_head_dim(64)]);
    assert_eq!(said.num_groups(), 1);
}

#[test]
fn another_number_of_places_may_be_asked_for() {
    let kind = LayerKind::new(2, 64);
    let layers = every(12, 3, kind, kind.with_window(16));
    let config = CacheConfig::of_layers(&layers).with_num_blocks(10);
    assert_eq!(config.layout().unwrap().layers_per_group(), 4);
    let two = config.clone().with_layers_per_group(2).layout().unwrap();
    assert_eq!((two.num_groups(), two.block_bytes()), (6, config.layout().unwrap().block_bytes() / 2));
    let error = config.clone().with_layers_per_group(9).layout().unwrap_err();
    assert_eq!(error.to_string(), "layers_per_group is 9, outside 1..=8; choose a value in that range");
    let uniform = CacheConfig::new(6, 2, 64).with_num_blocks(10).with_layers_per_group(3).layout().unwrap();
    assert_eq!((uniform.num_groups(), uniform.place(4)), (2, Some(LayerPlace { group: 1, place: 1 })));
}

#[test]
fn kinds_that_do_not_go_together_are_refused_by_name() {
    let refused = |layers: &[LayerKind]| CacheConfig::of_layers(layers).with_num_blocks(10).layout().unwrap_err();
    let (a, b) = (LayerKind::new(8, 128), LayerKind::new(8, 96).with_window(64));
    let error = refused(&[a, b]);
    assert!(matches!(error, ConfigError::UnlikeRows { k: 1536, wide_k: 2048, .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "a token takes 2048 bytes of K and 2048 of V in layers of 8 KV heads of 128 elements, which is no whole multiple, \
         the same of both, of the 1536 and 1536 bytes in layers of 8 KV heads of 96 elements, window 64; give one of the \
         kinds a cache of its own, or pad its heads"
    );
    // Half the K, but as much V.
    let error = refused(&[a, LayerKind::new(8, 64).with_v_head_dim(128)]);
    assert!(matches!(error, ConfigError::UnlikeRows { k: 1024, v: 2048, .. }), "{error}");
    // Blocks of 16, 32 and 48 tokens, those of 32 being the reference's.
    let kinds = [LayerKind::new(12, 64).with_window(9), LayerKind::new(6, 64), LayerKind::new(4, 64).with_window(7)];
    let error = refused(&kinds);
    assert!(matches!(error, ConfigError::UnlikeBlocks { block_size: 48, other: 32, .. }), "{error}");
    let kinds: Vec<LayerKind> = (1..18).map(|window| a.with_window(window)).collect();
    let error = refused(&kinds);
    assert!(matches!(error, ConfigError::TooManyGroups { groups: 17, kinds: 17, limit: 16 }), "{error}");
    let contiguous = CacheConfig::of_layers(&[a, a.with_window(7)]).with_num_blocks(1000).with_paged(false);
    assert_eq!(contiguous.layout(), Err(ConfigError::GroupsNotPaged { groups: 2 }));
    assert!(matches!(refused(&[]), ConfigError::OutOfRange { name: "num_layers", .. }));
    assert!(matches!(refused(&[a, a.with_window(0)]), ConfigError::OutOfRange { name: "window", .. }));
    let tables = CacheConfig::of_layers(&[a, a.with_window(7)]).with_num_blocks(10).with_block_size(1);
    assert!(matches!(tables.with_max_sequences((1 << 18) + 1).layout(), Err(ConfigError::TableTooLarge { .. })));
    let blocks = CacheConfig::of_layers(&[LayerKind::new(8, 64), LayerKind::new(1, 64)]).with_num_blocks(1 << 26);
    assert!(matches!(blocks.layout(), Err(ConfigError::TooManySlots { block_size: 128, .. })));
}

#[test]
fn what_a_file_says_of_all_layers_must_be_so_in_each() {
    let text = r#"{"num_blocks": 10, "layers": [{"num_kv_heads": 2, "head_dim": 64}, {"num_kv_heads": 2, "head_dim": 64, "window": 8}]}"#;
    let config: CacheConfig = serde_json::from_str(text).unwrap();
    let kind = LayerKind::new(2, 64);
    let told = CacheConfig::of_layers(&[kind, kind.with_window(8)]).with_num_blocks(10);
    assert_eq!(config.layout(), told.layout());
    assert_eq!((told.num_layers(), told.num_kv_heads(), told.head_dim(), told.window()), (2, 2, 64, None));
    let written = serde_json::to_string(&told).unwrap();
    assert_eq!(serde_json::from_str::<CacheConfig>(&written).unwrap(), told);
    let with = |name: &str, value: u32| {
        let mut text: serde_json::Value = serde_json::from_str(text).unwrap();
        text[name] = value.into();
        serde_json::from_value::<CacheConfig>(text).unwrap().layout()
    };
    assert_eq!(with("num_layers", 2), told.layout());
    assert_eq!(with("head_dim", 64), told.layout());
    assert_eq!(with("num_layers", 3), Err(ConfigError::LayerCount { num_layers: 3, given: 2 }));
    let disagree = |name, value, layer, given| Err(ConfigError::LayersDisagree { name, value, layer, given });
    assert_eq!(with("num_kv_heads", 4), disagree("num_kv_heads", 4, 0, 2));
    assert_eq!(with("v_head_dim", 32), disagree("v_head_dim", 32, 0, 64));
    assert_eq!(with("window", 8), disagree("window", 8, 0, 0));
    assert_eq!(
        with("window", 9).unwrap_err().to_string(),
        "window is 9, but 0 in layer 0 of layers; leave window out, or make both agree"
    );
}

#[test]
fn a_cache_of_other_groups_is_told_apart() {
    let kind = LayerKind::new(2, 64);
    let ours = layout(&[kind, kind.with_window(8)]);
    assert_eq!(ours.difference(&ours.clone()), None);
    let difference = |layers: &[LayerKind]| ours.difference(&layout(layers)).map(|(name, ..)| name);
    assert_eq!(difference(&[kind, kind.with_window(9)]), Some("window"));
    assert_eq!(difference(&[kind; 2]), Some("num_groups"));
    assert_eq!(difference(&[kind.with_window(8), kind]), Some("layers"));
    assert_eq!(ours.difference(&ours.with_num_blocks(50)), None);
    // A pool that may grow, and one that is larger than either could.
    let grown = ours.with_pool(ours.num_blocks(), 2 * ours.max_num_blocks());
    assert_eq!(grown.difference(&ours), None);
    assert_eq!(grown.with_pool_of(&ours), ours);
    let turned = layout(&[kind.with_window(8), kind]);
    assert_eq!(grown.difference(&turned).map(|(name, ..)| name), Some("layers"));
    assert_eq!(KvDtype::default(), ours.kv_dtype());
}
