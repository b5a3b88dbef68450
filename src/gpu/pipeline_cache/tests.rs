use super::*;

const DATA: &[u8] = b"compiled kernels";

fn info() -> wgpu::AdapterInfo {
    let mut info = wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, wgpu::Backend::Vulkan);
    (info.name, info.vendor, info.device) = ("Some GPU".to_owned(), 0x10de, 0x2330);
    (info.driver, info.driver_info) = ("a driver".to_owned(), "1.2.3".to_owned());
    info
}

fn refused(bytes: &[u8]) -> PipelineCacheError {
    decode(bytes, &info()).unwrap_err()
}

/// A file around another body, whose length and checksum fit.
fn sealed(body: &[u8]) -> Vec<u8> {
    let length = ((PREFIX_BYTES + body.len()) as u64).to_le_bytes();
    [&MAGIC[..], &length, &checksum(&length, body), body].concat()
}

#[test]
fn data_comes_back_as_it_was_saved() {
    for data in [DATA, &[]] {
        assert_eq!(decode(&encode(data, &info()).unwrap(), &info()), Ok(data));
    }
}

#[test]
fn a_changed_bit_anywhere_is_refused_by_the_name_of_its_field() {
    let good = encode(DATA, &info()).unwrap();
    for at in 0..good.len() {
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let error = refused(&bad);
            let fits = match at {
                0..8 => matches!(error, PipelineCacheError::NotAPipelineCache { .. }),
                8..16 => matches!(error, PipelineCacheError::Truncated { .. } | PipelineCacheError::Trailing { .. }),
                _ => error == PipelineCacheError::Checksum,
            };
            assert!(fits, "bit {bit} of byte {at}: {error}");
        }
    }
}

#[test]
fn a_file_that_is_cut_or_goes_on_is_refused_with_both_lengths() {
    let good = encode(DATA, &info()).unwrap();
    for len in 0..good.len() {
        let needed = if len < PREFIX_BYTES { PREFIX_BYTES } else { good.len() } as u64;
        assert_eq!(refused(&good[..len]), PipelineCacheError::Truncated { needed, given: len as u64 });
    }
    let (needed, given) = (good.len() as u64, good.len() as u64 + 1);
    assert_eq!(refused(&[&good[..], b"x"].concat()), PipelineCacheError::Trailing { needed, given });
}

#[test]
fn another_adapter_or_driver_is_refused_by_what_differs() {
    let saved_by = |change: &dyn Fn(&mut wgpu::AdapterInfo)| {
        let mut other = info();
        change(&mut other);
        refused(&encode(DATA, &other).unwrap())
    };
    let adapter = |change: &dyn Fn(&mut wgpu::AdapterInfo)| match saved_by(change) {
        PipelineCacheError::Adapter { field, saved, expected } => (field, saved, expected),
        error => panic!("{error}"),
    };
    let texts = |field, saved: &str, expected: &str| (field, saved.to_owned(), expected.to_owned());
    assert_eq!(adapter(&|info| info.name.push('2')), texts("name", "Some GPU2", "Some GPU"));
    assert_eq!(adapter(&|info| info.vendor = 0x1002), texts("vendor", "0x1002", "0x10de"));
    assert_eq!(adapter(&|info| info.device = 1), texts("device", "0x0001", "0x2330"));
    assert_eq!(adapter(&|info| info.backend = wgpu::Backend::Dx12), texts("backend", "dx12", "vulkan"));
    let driver = |change: &dyn Fn(&mut wgpu::AdapterInfo)| match saved_by(change) {
        PipelineCacheError::Driver { field, saved, expected } => (field, saved, expected),
        error => panic!("{error}"),
    };
    assert_eq!(driver(&|info| info.driver.clear()), texts("driver", "", "a driver"));
    assert_eq!(driver(&|info| info.driver_info.push('4')), texts("driver_info", "1.2.34", "1.2.3"));
}

#[test]
fn another_version_is_refused_whatever_follows() {
    let error = refused(&sealed(&postcard::to_allocvec(&("0.0.9", 7_u32)).unwrap()));
    assert_eq!(error, PipelineCacheError::Version { saved: "0.0.9".to_owned(), expected: VERSION });
}

#[test]
fn a_body_that_is_none_is_refused_though_its_checksum_fits() {
    let good = encode(DATA, &info()).unwrap();
    let body = &good[PREFIX_BYTES..];
    for wrong in [&[][..], &[0xff; 12], &body[..body.len() - 1], &[body, b"x"].concat()] {
        let error = refused(&sealed(wrong));
        assert!(matches!(error, PipelineCacheError::Body { .. }), "{error}");
    }
}

#[test]
fn more_bytes_than_a_file_may_have_are_refused() {
    let limit = MAX_PIPELINE_CACHE_BYTES;
    assert!(check_size(limit as usize).is_ok());
    assert_eq!(check_size(limit as usize + 1), Err(PipelineCacheError::TooLarge { bytes: limit + 1, limit }));
}
