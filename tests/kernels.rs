//! scratch
use wgpu_paged_attention::config::KvFormat;
use wgpu_paged_attention::gpu::DeviceProfile;
use wgpu_paged_attention::harness::*;
#[test]
fn smoke() {
    let gpu = Gpu::open(&GpuOptions::default()).unwrap();
    let p = DeviceProfile::of(&gpu.device);
    println!("{p:?}");
    for p in [p.clone(), p.without_subgroups()] {
        for fmt in [KvFormat::F32, KvFormat::F16] {
            for paged in [true, false] {
                for (hq, hkv, d) in [(8, 2, 64), (4, 4, 128), (7, 1, 80), (9, 1, 5), (2, 1, 256), (4, 2, 16)] {
                    let mut s = SceneSpec::decode(hq, hkv, d, &[1, 15, 16, 17, 0, 33, 300]);
                    s.kv_format = fmt;
                    s.paged = paged;
                    s.lse = true;
                    let mut p = p.clone();
                    p.split_tokens = if d == 64 { 64 } else { 1024 };
                    let scene = Scene::random(&s, 1).unwrap();
                    let got = scene.run(&gpu, &p, None).unwrap();
                    println!("{:?} {:?} {hq} {hkv} {d} {paged} {:?}", p.exchange, fmt, scene.judge(&got));
                    assert!(scene.judge(&got).is_ok());
                    if paged {
                        assert!(scene.judge(&scene.run(&gpu, &p, Some(Fault::SkipLastBlock)).unwrap()).is_err());
                    }
                    assert!(scene.judge(&scene.run(&gpu, &p, Some(Fault::StrayBlock)).unwrap()).is_err());
                }
            }
        }
    }
}
