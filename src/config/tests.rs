use proptest::prelude::*;

use super::*;
use crate::error::ConfigError;

fn config() -> CacheConfig {
    CacheConfig::new(2, 4, 64).with_num_blocks(100)
}

#[test]
fn a_file_may_say_little_and_use_either_name() {
    let short: CacheConfig = toml::from_str(
        "num_layers = 2\nnum_kv_heads = 4\nhead_dim = 64\nmax_blocks = 100\nenable_paged = true\nkv_dtype = 'f16'",
    )
    .unwrap();
    assert_eq!(short, config());
    let long: CacheConfig =
        toml::from_str("num_layers = 2\nnum_kv_heads = 4\nhead_dim = 64\nnum_blocks = 100\npaged = true").unwrap();
    assert_eq!(long, config());
    assert_eq!((long.block_size, long.max_seq_len, long.max_sequences), (16, 4096, 256));
}

#[test]
fn a_misspelt_field_is_an_error_and_not_a_default() {
    let error = toml::from_str::<CacheConfig>("num_layers = 2\nnum_kv_heads = 4\nhead_dim = 64\nblocksize = 8")
        .unwrap_err()
        .to_string();
    assert!(error.contains("blocksize"), "{error}");
}

#[test]
fn a_written_configuration_reads_back_the_same() {
    let other = CacheConfig::new(1, 1, 1).with_memory_budget_bytes(1 << 40).with_paged(false);
    for config in [config(), other, config().with_v_head_dim(80).with_kv_dtype(KvDtype::Int4)] {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<CacheConfig>(&text).unwrap(), config);
    }
}

#[test]
fn formats_have_one_name_everywhere() {
    for format in KvDtype::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
        assert_eq!(serde_json::to_string(&format).unwrap(), format!("\"{format}\""));
    }
    let error = "F16 ".parse::<KvDtype>().unwrap_err();
    assert_eq!(error, ConfigError::UnknownFormat { given: "F16 ".into() });
    assert_eq!(error.to_string(), "unknown KV format \"F16 \"; use f32, f16, bf16, int8, fp8 or int4");
}

#[test]
fn a_pool_grows_to_no_fewer_blocks_than_it_has() {
    assert_eq!(config().layout().unwrap().max_num_blocks(), 100);
    assert_eq!(config().with_max_num_blocks(101).layout().unwrap().max_num_blocks(), 101);
    let error = config().with_max_num_blocks(99).layout().unwrap_err();
    assert_eq!(error.to_string(), "max_num_blocks is 99, outside 100..=2147483648; choose a value in that range");
    let error = config().with_max_num_blocks(0).layout().unwrap_err();
    assert_eq!(error.to_string(), "max_num_blocks is 0, outside 100..=2147483648; choose a value in that range");
    let slots = config().with_block_size(65_536).with_max_num_blocks(65_536).layout();
    assert!(matches!(slots, Err(ConfigError::TooManySlots { num_blocks: 65_536, .. })), "{slots:?}");
    // In blocks of max_seq_len tokens, as the pool itself.
    let contiguous = config().with_paged(false).with_max_seq_len(160).with_max_num_blocks(200).layout().unwrap();
    assert_eq!((contiguous.num_blocks(), contiguous.max_num_blocks()), (10, 20));
    // Limits are told in the blocks that were given.
    let contiguous = |most| config().with_paged(false).with_max_seq_len(176).with_max_num_blocks(most).layout();
    let error = contiguous(98).unwrap_err();
    assert_eq!(error.to_string(), "max_num_blocks is 98, outside 99..=2147483648; choose a value in that range");
    assert_eq!(contiguous(99).unwrap().max_num_blocks(), 9);
}

#[test]
fn a_pool_has_exactly_one_size() {
    assert_eq!(CacheConfig::new(2, 4, 64).layout(), Err(ConfigError::NoPoolSize));
    assert_eq!(
        CacheConfig { memory_budget_bytes: Some(1000), ..config() }.layout(),
        Err(ConfigError::TwoPoolSizes { num_blocks: 100, memory_budget_bytes: 1000 })
    );
    // The size that is set last is the one.
    let budget = config().with_memory_budget_bytes(1000);
    assert_eq!((budget.num_blocks(), budget.memory_budget_bytes()), (None, Some(1000)));
    let blocks = budget.with_num_blocks(100);
    assert_eq!((blocks.num_blocks(), blocks.memory_budget_bytes()), (Some(100), None));
}

#[test]
fn a_budget_buys_whole_blocks() {
    // One block: 2 layers, K and V, 4 heads, 16 tokens, 64 elements of 2 bytes.
    let block = 2 * 2 * 4 * 16 * 64 * 2;
    let with_budget = |bytes| CacheConfig::new(2, 4, 64).with_memory_budget_bytes(bytes).layout();
    assert_eq!(with_budget(3 * block).unwrap().num_blocks(), 3);
    assert_eq!(with_budget(4 * block - 1).unwrap().num_blocks(), 3);
    assert_eq!(
        with_budget(block - 1),
        Err(ConfigError::BudgetTooSmall { budget: block - 1, block_bytes: block, block_size: 16 })
    );
}

#[test]
fn each_size_is_checked_by_itself() {
    let out_of_range = |config: CacheConfig| match config.layout() {
        Err(ConfigError::OutOfRange { name, value, .. }) => (name, value),
        other => panic!("{other:?}"),
    };
    let mut bad = config();
    bad.num_layers = 0;
    assert_eq!(out_of_range(bad), ("num_layers", 0));
    let mut bad = config();
    bad.num_kv_heads = 0;
    assert_eq!(out_of_range(bad), ("num_kv_heads", 0));
    for head_dim in [0, 513] {
        let mut bad = config();
        bad.head_dim = head_dim;
        assert_eq!(out_of_range(bad), ("head_dim", head_dim.into()));
        assert_eq!(out_of_range(config().with_v_head_dim(head_dim)), ("v_head_dim", head_dim.into()));
    }
    for block_size in [0, 65_537, u32::MAX] {
        assert_eq!(out_of_range(config().with_block_size(block_size)), ("block_size", block_size.into()));
    }
    for num_blocks in [0, u32::MAX] {
        assert_eq!(out_of_range(config().with_num_blocks(num_blocks)), ("num_blocks", num_blocks.into()));
    }
    assert_eq!(out_of_range(config().with_max_seq_len(0)), ("max_seq_len", 0));
    assert_eq!(out_of_range(config().with_max_sequences(0)), ("max_sequences", 0));
}

#[test]
fn odd_sizes_that_make_sense_work() {
    for block_size in [1, 3, 24, 4096] {
        let layout = config().with_block_size(block_size).layout().unwrap();
        assert_eq!(layout.max_blocks_per_seq(), 4096_u32.div_ceil(block_size));
    }
    assert_eq!(config().with_num_blocks(1).layout().unwrap().num_blocks(), 1);
    assert_eq!(CacheConfig::new(1, 1, 1).with_num_blocks(1).layout().unwrap().k_row_bytes(), 16);
}

#[test]
fn the_last_slot_number_stays_free_for_padding() {
    let slots = |num_blocks, block_size| {
        config().with_num_blocks(num_blocks).with_block_size(block_size).layout().map(|layout| layout.num_slots())
    };
    // (2^31 - 1) * 2 = 2^32 - 2: the highest slot is 2^32 - 3.
    assert_eq!(slots((1 << 31) - 1, 2), Ok(MAX_SLOTS));
    // 3 * 1431655765 = 2^32 - 1: one too many.
    assert_eq!(
        slots(1_431_655_765, 3),
        Err(ConfigError::TooManySlots {
            num_blocks: 1_431_655_765,
            block_size: 3,
            slots: (1 << 32) - 1,
            limit: MAX_SLOTS
        })
    );
    // All ids there are, up to 2^31 - 1.
    assert_eq!(slots(1 << 31, 1), Ok(1 << 31));
    assert!(slots((1 << 31) + 1, 1).is_err());
}

#[test]
fn a_budget_beyond_the_ids_is_named_and_not_cut_off() {
    let config = CacheConfig::new(1, 1, 1).with_memory_budget_bytes(u64::MAX);
    assert!(matches!(config.layout(), Err(ConfigError::TooManySlots { .. })), "{:?}", config.layout());
    // 32 bytes a token: 2^31 + 1 blocks of one token have slots enough, but not ids.
    let blocks = (1_u64 << 31) + 1;
    let config = CacheConfig::new(1, 1, 1).with_block_size(1).with_memory_budget_bytes(32 * blocks);
    assert_eq!(
        config.layout(),
        Err(ConfigError::OutOfRange { name: "num_blocks", value: blocks, min: 1, max: 1 << 31 })
    );
}

#[test]
fn tables_of_a_billion_entries_are_the_limit() {
    let rows = |max_sequences| config().with_block_size(1).with_max_sequences(max_sequences).layout();
    assert!(rows(1 << 18).is_ok());
    assert_eq!(
        rows((1 << 18) + 1),
        Err(ConfigError::TableTooLarge {
            max_sequences: (1 << 18) + 1,
            max_blocks_per_seq: 4096,
            entries: (1 << 30) + 4096,
            limit: MAX_TABLE_ENTRIES,
        })
    );
}

#[test]
fn sizes_that_cannot_be_counted_are_refused() {
    let huge = |config: CacheConfig| matches!(config.layout(), Err(ConfigError::CacheTooLarge { .. }));
    let most = MAX_LAYERS_OR_HEADS;
    let shape = CacheConfig::new(most, most, 512).with_kv_dtype(KvDtype::F32);
    // 2^44 bytes a token: 2^20 slots are 2^64 bytes.
    assert!(huge(shape.clone().with_num_blocks(1 << 16)));
    assert!(shape.clone().with_num_blocks((1 << 16) - 1).layout().is_ok());
    // A contiguous block that is itself beyond counting.
    let one_region = shape.with_paged(false).with_max_seq_len(1 << 20);
    assert!(huge(one_region.clone().with_memory_budget_bytes(u64::MAX)));
    assert!(huge(one_region.with_num_blocks(1 << 16)));
}

#[test]
fn contiguous_sequences_share_the_same_number_of_tokens() {
    // 1,000 blocks of 16 are 16,000 tokens: 3 regions of 4,096.
    let layout = config().with_num_blocks(1000).with_paged(false).layout().unwrap();
    assert_eq!((layout.num_blocks(), layout.block_size(), layout.max_blocks_per_seq()), (3, 4096, 1));
    assert_eq!(
        config().with_num_blocks(255).with_paged(false).layout(),
        Err(ConfigError::PoolTooSmall { num_blocks: 255, block_size: 16, tokens: 4080, max_seq_len: 4096 })
    );
    // By bytes: 2 layers, K and V, 4 heads, 4,096 tokens, 128 bytes.
    let region = 2 * 2 * 4 * 4096 * 128;
    let with_budget = |bytes| CacheConfig::new(2, 4, 64).with_paged(false).with_memory_budget_bytes(bytes).layout();
    assert_eq!(with_budget(2 * region).unwrap().num_blocks(), 2);
    assert_eq!(
        with_budget(region - 1),
        Err(ConfigError::BudgetTooSmall { budget: region - 1, block_bytes: region, block_size: 4096 })
    );
}

#[test]
fn the_published_figures_of_llama_13b_come_out() {
    let gib = 1 << 30;
    let model = CacheConfig::new(40, 40, 128).with_memory_budget_bytes(25 * gib);
    let contiguous = model.clone().with_paged(false).layout().unwrap();
    assert_eq!(contiguous.block_bytes(), 3 * gib + gib / 8);
    assert_eq!(contiguous.num_blocks(), 8);
    assert_eq!(contiguous.layer_bytes() / 8, 80 << 20);
    let columns =
        [8, 16, 32, 64].map(|size| model.clone().with_block_size(size).layout().unwrap().max_blocks_per_seq());
    assert_eq!(columns, [512, 256, 128, 64]);
    let paged = model.layout().unwrap();
    assert_eq!(paged.block_bytes() * u64::from(paged.blocks_for(1024)), contiguous.block_bytes() / 4);
}

fn any_size() -> impl Strategy<Value = u32> {
    prop_oneof![0..5_u32, 1..5000_u32, Just(65_536), Just(1 << 31), Just(u32::MAX), any::<u32>()]
}

proptest! {
    #[test]
    fn any_numbers_give_a_sound_layout_or_an_error(
        sizes in prop::array::uniform7(any_size()),
        budget in prop_oneof![Just(None), any::<u64>().prop_map(Some)],
        format in prop::sample::select(&KvDtype::ALL[..]),
        v_head_dim in prop::option::of(any_size()),
        paged in any::<bool>(),
        limit in any::<u64>(),
    ) {
        let [layers, heads, dim, block_size, num_blocks, max_seq_len, max_sequences] = sizes;
        let mut config = CacheConfig::new(layers, heads, dim)
            .with_kv_dtype(format)
            .with_block_size(block_size)
            .with_paged(paged)
            .with_max_seq_len(max_seq_len)
            .with_max_sequences(max_sequences);
        config.v_head_dim = v_head_dim;
        config.memory_budget_bytes = budget;
        config.num_blocks = budget.is_none().then_some(num_blocks);
        let Ok(layout) = config.layout() else { return Ok(()) };
        prop_assert!(layout.num_blocks() > 0);
        prop_assert!(layout.num_slots() <= MAX_SLOTS);
        prop_assert_eq!(layout.layer_bytes() * u64::from(layers), layout.total_bytes());
        prop_assert!(budget.is_none_or(|budget| layout.total_bytes() <= budget));
        let columns = u64::from(layout.max_blocks_per_seq());
        prop_assert!(columns * u64::from(layout.block_size()) >= max_seq_len.into());
        prop_assert!(columns * u64::from(max_sequences) <= MAX_TABLE_ENTRIES);
        if let Ok(head_shards) = layout.head_shards(limit) {
            prop_assert!(head_shards.bytes <= limit && head_shards.bytes < 1 << 32);
            prop_assert_eq!(head_shards.iter().map(|(_, heads)| heads).sum::<u32>(), heads);
            prop_assert!(head_shards.iter().all(|(_, heads)| heads > 0 && heads <= head_shards.heads_per_shard));
        }
    }
}
