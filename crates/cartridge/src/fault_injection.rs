//! Bugs that can be planted in cartridges. See [`base::fault_injection`].

base::bugs! {
    /// Filemarks that are not immediate are acknowledged when they are written and not flushed.
    FilemarkUnflushed,
    /// Unloading writes the checkpoint before it flushes what is before the checkpoint.
    CheckpointBeforeData,
    /// The start of writing keeps the epoch of the partition.
    EpochKept,
    /// The start of writing keeps the mark of the label that the cartridge was unloaded.
    UnloadedKept,
    /// Erasing frees the storage before the label gives up what is in it.
    FreeBeforeLabel,
    /// The second copy of the label is written before the first one is flushed.
    LabelCopiesTogether,
    /// Loading accepts an item by its header alone.
    TornItemAccepted,
    /// What a failed write gives up is given up in memory, and not in the label.
    GivenUpUnlabeled,
}

impl Bug {
    /// The bugs that the simulator finds with the commands of its worlds of tapes.
    pub const OF_COMMANDS: &[Self] =
        &[Self::FilemarkUnflushed, Self::EpochKept, Self::UnloadedKept, Self::TornItemAccepted];
}
