//! Several decode steps in one submit: each word is sampled on the device and fed to the next step there, and the host reads
//! the words once for all of them. What came behind the end of a text is cut off again. Every word is, to the bit, what
//! stepping one by one gives, and the prefix cache finds the texts and nothing that was cut off.

#[path = "common/mod.rs"]
mod common;
#[path = "common/tiny_model.rs"]
mod tiny_model;

use std::error::Error;

use tiny_model::{END, TinyEngine, WORDS};
use wgpu_paged_attention::blocks::Domain;
use wgpu_paged_attention::error::ManagerError;

/// Decode steps of one submit.
const STEPS: usize = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let (device, queue) = common::open_device()?;
    let random = |count: usize| common::Text::random(1, count as u32).q[..count].to_vec();
    let mut engine = TinyEngine::new(device, queue, random)?;
    let prompts: Vec<Vec<u32>> =
        (1..5).map(|at| (0..12 + at).map(|word| 1 + word * at % (WORDS - 1)).collect()).collect();

    // One by one, as if every word had to be known before the next step.
    let mut texts = Vec::new();
    for prompt in &prompts {
        let seq = engine.manager.create_sequence()?;
        let (mut text, mut word) = (prompt.clone(), engine.prompt(seq, prompt)?);
        while word != END {
            text.push(word);
            word = engine.decode(&[(seq, word)], 1)?[0][1];
        }
        texts.push(text);
        engine.manager.release(seq)?;
    }
    // Nothing of this may help what follows.
    engine.reset()?;

    // All together, several steps at once.
    let mut running = Vec::new();
    for (at, prompt) in prompts.iter().enumerate() {
        let seq = engine.manager.create_sequence()?;
        running.push((at, seq, prompt.clone(), engine.prompt(seq, prompt)?));
    }
    let (mut submits, mut cut) = (0, 0);
    while !running.is_empty() {
        let batch: Vec<_> = running.iter().map(|&(_, seq, _, word)| (seq, word)).collect();
        let said = engine.decode(&batch, STEPS)?;
        submits += 1;
        for ((at, seq, text, word), said) in running.iter_mut().zip(said) {
            let late = engine.manager.take_late_tokens(*seq)?;
            let kept = said.iter().position(|&word| word == END).unwrap_or(STEPS);
            cut += STEPS - kept;
            engine.manager.truncate(*seq, late.positions().start + kept as u32)?;
            engine.manager.add_token_ids(late, &said[..kept])?;
            text.extend(&said[..kept]);
            *word = said[kept];
            if *word == END {
                assert_eq!(*text, texts[*at], "text {at} differs from the one that was made step by step");
                // The words are refused for what is not there any more, and a second time.
                let again = engine.manager.add_token_ids(late, &said[..kept.max(1)]);
                assert!(matches!(
                    again,
                    Err(ManagerError::TokenIdsTwice { .. } | ManagerError::TruncatedTokenIds { .. })
                ));
            }
        }
        for (_, seq, ..) in running.extract_if(.., |(.., word)| *word == END) {
            engine.manager.release(seq)?;
        }
    }
    println!("{} texts of {:?} words", texts.len(), texts.iter().map(Vec::len).collect::<Vec<_>>());
    println!("{submits} submits of {STEPS} steps; {cut} words behind an end were cut off");

    let block_size = engine.cache.layout().block_size();
    for text in &texts {
        let longer = [text.as_slice(), &[END; 40]].concat();
        let found = engine.manager.cached_tokens(&longer, &Domain::default());
        assert_eq!(found, text.len() as u32 / block_size * block_size);
    }
    println!("the prefix cache finds every full block of them, and none that was cut off");
    Ok(())
}
