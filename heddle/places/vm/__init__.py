"""The place `vm`: a virtual machine with Debian's full kernel, which runs the same verbs.

    kernels.py        the kernels to choose from
    guestpackages.py  the Debian packages of the guest
    image.py          images of the cache: the name of an image is a hash of its inputs
    imagecache.py     make an image once, remove old ones
    recipe.py         the commands that make an image, as words
    imagebuild.py     run them: mmdebstrap -> disk, kernel, initramfs
    buildspace.py     the namespaces in which they run, with root and without
    leftovers.py      remove what killed builds and replays left
    pack.py           the last step of it, as root or under fakeroot
    initramfs.py      the first programs of the guest, as cpio archives
    bootkeys.py       keys of the guest and of its user, made for each boot
    hardware.py       what a guest gets, and the command line of QEMU
    monitor.py        questions to a running QEMU
    booting.py        start QEMU once and wait until the guest is ready
    guest.py          one running guest: start, find, end
    place.py          the guest as a place that verbs run in
    vmcheck.py        the row `vm` of doctor

The guest's own scripts are in templates/vm/.
"""
