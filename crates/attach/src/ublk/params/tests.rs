use super::*;

fn disk() -> Capabilities {
    Capabilities {
        len: 1 << 30,
        logical_block_len: 512,
        preferred_block_len: 4096,
        io_len_max: 64 << 20,
        atomic_len_max: 0,
        read_only: false,
        volatile_cache: true,
        thin: true,
        deallocated_reads_zero: true,
        zeroes_by_deallocating: true,
        deallocated_is_gone: true,
        rotational: false,
        crypto_erase: false,
    }
}

#[test]
fn the_kernel_is_told_what_the_disk_says() {
    let told = params(&disk()).unwrap();
    assert_eq!((told.basic.logical_shift, told.basic.physical_shift, told.basic.sectors), (9, 12, 1 << 21));
    assert_eq!(told.basic.attributes, attributes::VOLATILE_CACHE | attributes::FUA);
    assert_eq!(told.basic.io_sectors_max, 512);
    assert_eq!((told.discard.granularity, told.discard.segments_max), (4096, 1));
    assert_eq!((told.discard.discard_sectors_max, told.discard.write_zeroes_sectors_max), (1 << 23, 1 << 19));
    assert_eq!((told.len, told.types), (112, 3));
}

#[test]
fn each_quality_of_the_disk_is_told() {
    type Case = (fn(&mut Capabilities), fn(&Params) -> bool);
    let cases: [Case; 7] = [
        (|disk| disk.volatile_cache = false, |told| told.basic.attributes == 0),
        (|disk| disk.read_only = true, |told| told.basic.attributes & attributes::READ_ONLY != 0),
        (|disk| disk.rotational = true, |told| told.basic.attributes & attributes::ROTATIONAL != 0),
        (|disk| disk.thin = false, |told| told.discard.discard_sectors_max == 0),
        (|disk| disk.logical_block_len = 4096, |told| told.basic.logical_shift == 12),
        // A device cannot have blocks longer than a page: requests are patched into them.
        (
            |disk| disk.logical_block_len = 8192,
            |told| told.basic.logical_shift == 12 && told.basic.physical_shift == 13,
        ),
        (|disk| disk.len += 511, |told| told.basic.sectors == 1 << 21),
    ];
    for (number, (change, holds)) in cases.into_iter().enumerate() {
        let mut disk = disk();
        change(&mut disk);
        let told = params(&disk).unwrap();
        assert!(holds(&told), "case {number}: {told:?}");
    }
    assert_eq!(params(&Capabilities { len: 511, ..disk() }), Err(Unfit::Empty));
}

#[test]
fn a_device_is_served_by_a_disk_of_its_form_only() {
    let of = |disk: &Capabilities| DeviceParams::of(&params(disk).unwrap());
    let device = of(&disk());
    assert_eq!(device, DeviceParams { len: 1 << 30, block: 512, io_len_max: 256 << 10, cache: true });
    assert_eq!(device.fits(&device), Ok(()));
    assert_eq!(device.fits(&of(&Capabilities { len: 2 << 30, ..disk() })), Ok(()), "it has grown");
    // The disk may have gained or lost its cache; the state machine handles that per request.
    assert_eq!(device.fits(&of(&Capabilities { volatile_cache: false, ..disk() })), Ok(()));
    assert!(device.fits(&of(&Capabilities { len: (1 << 30) - 512, ..disk() })).is_err());
    assert!(device.fits(&of(&Capabilities { logical_block_len: 4096, ..disk() })).is_err());
    assert!(DeviceParams { io_len_max: 1 << 20, ..device }.fits(&device).is_err(), "longer than our buffers");
}

#[test]
fn nonsense_of_the_kernel_is_told_as_it_is() {
    let mut params = params(&disk()).unwrap();
    params.basic.logical_shift = 200;
    params.basic.sectors = u64::MAX;
    let told = DeviceParams::of(&params);
    assert_eq!((told.block, told.len), (0, u64::MAX));
    assert!(told.fits(&told).is_ok(), "compared only; no request fits into it");
}
