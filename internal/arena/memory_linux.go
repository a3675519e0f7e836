package arena

import "golang.org/x/sys/unix"

// advise keeps huge pages away: with them, the first touch of a block would
// take memory for its neighbours, and a freed block could not leave alone.
func advise(mem []byte) {
	_ = unix.Madvise(mem, unix.MADV_NOHUGEPAGE) // kernels without huge pages refuse
}

func release(mem []byte) {
	_ = unix.Madvise(mem, unix.MADV_DONTNEED) // fails only for locked memory, which then stays
}
