//! Whole transfers out of system calls that may be interrupted, or do a part of what was asked.
//!
//! The files of the operating system and those of the simulated disk go through the same loops, so that the tests of the engine run the
//! loops that a real disk needs.
//!
//! Thread safety: no state.
//!
//! Invariants:
//! 1. `Ok` means all of it. A call that was interrupted is repeated, one that did a part is continued where it stopped.
//! 2. A call is never asked for nothing, and one that does nothing ends the loop with an error: no endless loop.
//!
//! Failure modes: the error of the call that failed; what was transferred before it stays transferred. The end of the file met by a read is
//! `UnexpectedEof`, a write that takes nothing is `WriteZero`.
use std::io;

/// Repeats a call while signals interrupt it.
pub(super) fn uninterrupted<T, E: Into<io::Error>>(
    mut call: impl FnMut() -> Result<T, E>,
) -> io::Result<T> {
    loop {
        match call().map_err(Into::into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Fills the buffer from `offset` on, by as many calls of `read` as it takes.
pub(super) fn read_fully(
    mut buffer: &mut [u8],
    mut offset: u64,
    mut read: impl FnMut(&mut [u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !buffer.is_empty() {
        let count = uninterrupted(|| read(buffer, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        buffer = &mut buffer[count..];
        offset += count as u64;
    }
    Ok(())
}

/// Writes all bytes from `offset` on, by as many calls of `write` as it takes.
pub(super) fn write_fully(
    mut bytes: &[u8],
    mut offset: u64,
    mut write: impl FnMut(&[u8], u64) -> io::Result<usize>,
) -> io::Result<()> {
    while !bytes.is_empty() {
        let count = uninterrupted(|| write(bytes, offset))?;
        if count == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = &bytes[count..];
        offset += count as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupted() -> io::Error {
        io::ErrorKind::Interrupted.into()
    }

    #[test]
    fn a_read_goes_on_after_interruptions_and_short_transfers() {
        let content: Vec<u8> = (0..100).collect();
        for step in 1..100 {
            let (mut calls, mut buffer) = (0, [0; 60]);
            read_fully(&mut buffer, 20, |part, offset| {
                calls += 1;
                if calls % 3 == 0 {
                    return Err(interrupted());
                }
                let count = part.len().min(step);
                part[..count].copy_from_slice(&content[offset as usize..][..count]);
                Ok(count)
            })
            .unwrap();
            assert_eq!(buffer, content[20..80]);
            assert!(calls >= 60usize.div_ceil(step));
        }
    }

    #[test]
    fn a_write_goes_on_after_interruptions_and_short_transfers() {
        for step in 1..100 {
            let (mut calls, mut content) = (0, vec![0; 100]);
            let bytes: Vec<u8> = (1..=60).collect();
            write_fully(&bytes, 20, |part, offset| {
                calls += 1;
                if calls % 2 == 0 {
                    return Err(interrupted());
                }
                let count = part.len().min(step);
                content[offset as usize..][..count].copy_from_slice(&part[..count]);
                Ok(count)
            })
            .unwrap();
            assert_eq!(content[20..80], bytes);
            assert!(content[..20].iter().chain(&content[80..]).all(|&b| b == 0));
        }
    }

    #[test]
    fn ends_and_errors_end_the_loop() {
        let at_end = read_fully(&mut [0; 4], 0, |part, offset| {
            Ok(part.len().min(3 - offset as usize))
        });
        assert_eq!(at_end.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let full = write_fully(&[0; 4], 0, |_, _| Ok(0));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::WriteZero);
        let mut calls = 0;
        let failed = write_fully(&[0; 4], 0, |_, _| {
            calls += 1;
            if calls == 2 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            Ok(1)
        });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(calls, 2);
        read_fully(&mut [], 0, |_, _| unreachable!("nothing is asked for")).unwrap();
        write_fully(&[], 0, |_, _| unreachable!("nothing is asked for")).unwrap();
    }
}
