//! A file of a simulated disk.
//!
//! Thread safety, invariants and failure modes: those of the disk.
#![allow(unsafe_code)] // copies to and from images
use super::{
    Arc, CallKind, Disk, Image, Mutex, ReadMap, State, StorageError, StorageFile, StoreWatch,
    WriteMap, check_map_write, io, read_fully, uninterrupted, write_fully,
};

/// One in so many stores finds that sectors of its file are being written back.
const WRITE_BACK_ONE_IN: u64 = 8;

#[derive(Debug)]
pub(super) struct SimFile {
    state: Arc<Mutex<State>>,
    name: String,
    inode: u64,
    image: Arc<Image>,
}

impl SimFile {
    pub fn new(state: &Arc<Mutex<State>>, name: &str, inode: u64, image: Arc<Image>) -> SimFile {
        SimFile {
            state: Arc::clone(state),
            name: name.to_owned(),
            inode,
            image,
        }
    }

    fn end_of(&self, offset: u64, len: u64) -> Result<u64, StorageError> {
        offset
            .checked_add(len)
            .filter(|&end| end <= self.image.reserved_bytes() as u64)
            .ok_or_else(|| {
                StorageError::io(
                    "write_at",
                    &self.name,
                    io::Error::from(io::ErrorKind::StorageFull),
                )
            })
    }

    /// One read of the system: perhaps a part, and nothing at the end of the file.
    fn read_some(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.interrupt()?;
        state.enter(CallKind::Read, &self.name)?;
        let part = state.transfer_bytes(buffer.len());
        let inode = state.disk.inode(self.inode);
        let there = inode.shape.len.saturating_sub(offset);
        let part = part.min(usize::try_from(there).unwrap_or(usize::MAX));
        // SAFETY: usable by invariant 1; concurrent stores are covered by invariant 2.
        unsafe {
            inode
                .image
                .read(offset.min(inode.shape.len), &mut buffer[..part])
        };
        Ok(part)
    }

    /// One write of the system: perhaps a part.
    fn write_some(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state.lock();
        state.interrupt()?;
        let wanted = state.transfer_bytes(bytes.len());
        let room = state.room_for(self.inode, offset, wanted);
        state.offset = offset;
        let done = state.enter(CallKind::Write, &self.name);
        if state.crashed.is_some() {
            return done.map(|()| 0);
        }
        let room = room?;
        // A write that fails or is cut off by the crash has done a part of its work.
        let crash = state.crash_due();
        let part = if crash || done.is_err() {
            state.random.below(room as u64 + 1) as usize
        } else {
            room
        };
        let inode = state.disk.inode(self.inode);
        inode.write(offset, &bytes[..part])?;
        if crash {
            return Err(state.crash_in(CallKind::Write, &self.name, |_, _| ()));
        }
        done.map(|()| part)
    }

    fn try_sync(&self) -> io::Result<()> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.interrupt()?;
        let entered = state.enter(CallKind::Sync, &self.name);
        if state.crashed.is_some() {
            return entered;
        }
        if state.crash_due() {
            return Err(state.crash_in(CallKind::Sync, &self.name, Disk::write_back_some));
        }
        let lies = match &mut state.lie_after {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        if lies && entered.is_ok() {
            (state.lie_after, state.lied_about) = (None, Some(self.name.clone()));
            return Ok(());
        }
        let inode = state.disk.inode(self.inode);
        match entered {
            Ok(()) => {
                inode.sync();
                Ok(())
            }
            Err(error) => {
                inode.fail_sync(&mut state.random);
                Err(error)
            }
        }
    }

    fn fail(&self, kind: CallKind) -> impl Fn(io::Error) -> StorageError + '_ {
        move |error| StorageError::io(kind.name(), &self.name, error)
    }
}

impl StorageFile for SimFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Result<u64, StorageError> {
        let mut state = self.state.lock();
        state.look(CallKind::Look, &self.name)?;
        Ok(state.disk.inode(self.inode).shape.len)
    }

    fn set_len(&self, len: u64) -> Result<(), StorageError> {
        self.end_of(0, len)?;
        let mut state = self.state.lock();
        state.change(CallKind::SetLen, &self.name, |disk, _| {
            disk.inode(self.inode).set_len(len)
        })
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        self.end_of(offset, len)?;
        let mut state = self.state.lock();
        let room = state.check_capacity(self.inode, offset, len);
        let given = match room {
            Ok(()) => len,
            // As file systems do: what there is of it, with the length that goes with that, and the error.
            Err(_) => state
                .room_for(self.inode, offset, len as usize)
                .map_or(0, |bytes| bytes as u64),
        };
        state.change(CallKind::Allocate, &self.name, |disk, _| {
            if given > 0 {
                let inode = disk.inode(self.inode);
                inode.image.grow(offset + given)?;
                inode.shape.add_blocks(offset, given);
                inode.shape.len = inode.shape.len.max(offset + given);
            }
            room
        })
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), StorageError> {
        read_fully(buffer, offset, |part, at| self.read_some(part, at))
            .map_err(self.fail(CallKind::Read))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), StorageError> {
        self.end_of(offset, bytes.len() as u64)?;
        write_fully(bytes, offset, |part, at| self.write_some(part, at))
            .map_err(self.fail(CallKind::Write))
    }

    fn sync_data(&self) -> Result<(), StorageError> {
        uninterrupted(|| self.try_sync()).map_err(self.fail(CallKind::Sync))
    }

    fn punch_hole(&self, offset: u64, len: u64) -> Result<(), StorageError> {
        let mut state = self.state.lock();
        state.change(CallKind::PunchHole, &self.name, |disk, _| {
            disk.inode(self.inode).punch_hole(offset, len);
            Ok(())
        })
    }

    fn allocated_bytes(&self) -> Result<u64, StorageError> {
        let mut state = self.state.lock();
        state.look(CallKind::Look, &self.name)?;
        Ok(state.disk.inode(self.inode).shape.allocated_bytes())
    }

    fn map_read(&self, reserve_bytes: u64) -> Result<ReadMap, StorageError> {
        let len = self.len()?;
        self.state.lock().look(CallKind::Map, &self.name)?;
        Ok(ReadMap::of_image(
            &self.image,
            &self.name,
            reserve_bytes.max(len),
        ))
    }

    fn map_write(&self, offset: u64, len: u64) -> Result<WriteMap, StorageError> {
        let file_len = self.len()?;
        self.state.lock().look(CallKind::Map, &self.name)?;
        check_map_write(&self.name, offset, len, file_len)?;
        let watch = Stores {
            state: Arc::clone(&self.state),
            name: self.name.clone(),
            inode: self.inode,
            offset,
        };
        Ok(WriteMap::of_image(
            &self.image,
            &self.name,
            offset,
            len,
            Some(Arc::new(watch)),
        ))
    }
}

/// Stores through one mapping.
struct Stores {
    state: Arc<Mutex<State>>,
    name: String,
    inode: u64,
    /// Where the mapping begins.
    offset: u64,
}

impl StoreWatch for Stores {
    fn part_of(&self, len: usize) -> usize {
        let mut state = self.state.lock();
        match state.rough.below(4) {
            0 => 0,
            1 => len,
            _ => state.rough.below(len as u64 + 1) as usize,
        }
    }

    fn stored_a_part(&self, offset: u64) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        state.offset = self.offset + offset;
        // A store cannot fail, and what comes after the crash is in nobody's disk.
        if state.enter(CallKind::Store, &self.name).is_err() {
            return;
        }
        if state.early_write_back && state.random.one_in(WRITE_BACK_ONE_IN) {
            let one_in = 1 + state.random.below(4);
            let inode = state.disk.inode(self.inode);
            inode.write_back(&mut state.random, one_in);
        }
        if state.crash_due() {
            state.crash_in(CallKind::Store, &self.name, |_, _| ());
        }
    }
}
