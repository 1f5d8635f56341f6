//! The bodies of the fuzz targets over a seeded corpus, for machines without cargo-fuzz: the golden frames, and changes of them.
//!
//! `AUDITSTREAM_SEEDS=17..18` runs these seeds instead of the first 400; `AUDITSTREAM_WRITE_CORPUS=1` writes the golden frames to
//! `fuzz/corpus`, as a start for cargo-fuzz.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::ops::Range;
use std::path::Path;

use auditstream::protocol::{Frame, SegmentRef};
use auditstream::testing::Rng;

fn golden() -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    let byte = |digits: &str| u8::from_str_radix(digits, 16).unwrap();
    let frames = files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "hex"))
        .map(|file| std::fs::read_to_string(file).unwrap().split_whitespace().map(byte).collect());
    frames.collect()
}

fn seeds() -> Range<u64> {
    let Ok(text) = std::env::var("AUDITSTREAM_SEEDS") else { return 0..400 };
    let (from, to) = text.split_once("..").expect("AUDITSTREAM_SEEDS is FROM..TO");
    from.parse().unwrap()..to.parse().unwrap()
}

/// A few changes as a fuzzer makes them: bits, bytes, telling numbers, pieces cut out, doubled or taken from another.
fn changed(rng: &mut Rng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[rng.index(corpus.len())].clone();
    for _ in 0..rng.between(1, 4) {
        if bytes.is_empty() {
            return bytes;
        }
        let at = rng.index(bytes.len());
        let end = at + rng.index(bytes.len() - at + 1);
        match rng.between(0, 5) {
            0 => bytes[at] ^= 1 << rng.between(0, 7),
            1 => bytes[at] = rng.next_u64().to_le_bytes()[0],
            2 => {
                let numbers = [0, 1, 0x7fff, 0xffff, 0x1_0000, 0x2_8001, 0x4_0001, u64::MAX - 1, u64::MAX];
                let number = numbers[rng.index(numbers.len())].to_le_bytes();
                let length = (1 << rng.between(0, 3)).min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&number[..length]);
            }
            3 => drop(bytes.drain(at..end)),
            4 => bytes.extend_from_within(at..end),
            _ => {
                let other = &corpus[rng.index(corpus.len())];
                let from = rng.index(other.len());
                bytes.splice(at..end, other[from..].iter().copied());
            }
        }
    }
    bytes
}

#[test]
fn the_golden_frames_keep_the_promises_that_the_fuzz_targets_check() {
    for frame in golden() {
        bodies::decode_frames(&[&[0x80], &frame[..]].concat());
        bodies::decode_frames(&[&[99], &frame[..], &frame].concat());
        bodies::decode_values(&frame);
        bodies::decode_values(&frame[16..]);
        let (frames, error) = bodies::frames_in_pieces(&frame, 3);
        assert_eq!((frames.len(), error), (1, None));
        if let [Frame::Segment(bytes)] = &frames[..] {
            // The checksums that the bodies put in are those that belong there.
            assert_eq!(bodies::segment_frame(&frame[16..]), bytes.to_vec());
        }
        if std::env::var_os("AUDITSTREAM_WRITE_CORPUS").is_some() {
            write_corpus(&frame);
        }
    }
}

fn write_corpus(frame: &[u8]) {
    let name = format!("golden-{:08x}", crc32fast::hash(frame));
    for (target, bytes) in
        [("decode_frames", [&[0x87], frame].concat()), ("decode_values", frame[16..].to_vec())]
    {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(&name), bytes).unwrap();
    }
}

#[test]
fn seeded_changes_of_the_golden_frames_keep_the_promises_that_the_fuzz_targets_check() {
    let golden = golden();
    let payloads: Vec<_> = golden.iter().map(|frame| frame[16..].to_vec()).collect();
    let (mut segments, mut verified) = (0, 0);
    for seed in seeds() {
        // Printed when the test fails: the last line is the seed that did it.
        println!("replay: AUDITSTREAM_SEEDS={seed}..{} cargo test --test protocol_fuzz_corpus", seed + 1);
        let mut rng = Rng::new(seed);
        for _ in 0..20 {
            let stream = changed(&mut rng, &golden);
            bodies::decode_frames(&[&[rng.next_u64().to_le_bytes()[0]], &stream[..]].concat());
            let payload = changed(&mut rng, &payloads);
            bodies::decode_values(&payload);
            let frame = bodies::segment_frame(&payload);
            if let Ok(segment) = SegmentRef::parse(&frame) {
                segments += 1;
                verified += usize::from(segment.verify().is_ok());
            }
        }
    }
    println!("{segments} changed segments could be parsed, {verified} of them verified");
    if std::env::var_os("AUDITSTREAM_SEEDS").is_none() {
        assert!(
            segments > 50 && verified > 0 && verified < segments,
            "{segments} parsed, {verified} verified"
        );
    }
}
