package lukv

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
)

const rankingFormat = "lukv ranking state"

// rankingHead is the first line of a state of a ranking. The sums of the layers listed
// follow, in this order, head by head, as little-endian doubles: n, y, f, fy, and the lower
// triangle of ff by rows; then the SHA-256 of everything before it.
type rankingHead struct {
	Format   string          `json:"format"`
	Version  int             `json:"version"`
	Identity ProfileIdentity `json:"identity"`
	Layers   int             `json:"layers"`
	KVHeads  int             `json:"kv_heads"`
	HeadDim  int             `json:"head_dim"`
	Texts    int             `json:"texts"`
	Added    []int           `json:"added"` // layers with sums, ascending
}

// each calls fn for the numbers of a head in the order of the file, part by part.
func (s *rankingSums) each(fn func([]float64) error) error {
	counts := []float64{float64(s.n), s.y}
	for _, part := range [][]float64{counts, s.f, s.fy} {
		if err := fn(part); err != nil {
			return err
		}
	}
	s.n, s.y = int(counts[0]), counts[1]
	F := len(s.f)
	for i := range F {
		if err := fn(s.ff[i*F : i*F+i+1]); err != nil {
			return err
		}
	}
	return nil
}

// writeState writes everything needed to go on after the texts that were ended.
func (b *RankingBuilder) writeState(w io.Writer) error {
	sum := sha256.New()
	out := bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)
	head, err := json.Marshal(rankingHead{
		Format: rankingFormat, Version: fileVersion, Identity: b.id,
		Layers: b.layers, KVHeads: b.kvHeads, HeadDim: b.headDim, Texts: b.texts, Added: slices.Sorted(maps.Keys(b.sums)),
	})
	if err != nil {
		return err
	}
	out.Write(append(head, '\n'))
	var buf []byte
	for _, at := range slices.Sorted(maps.Keys(b.sums)) {
		for h := range b.sums[at] {
			b.sums[at][h].each(func(part []float64) error {
				buf = buf[:0]
				for _, v := range part {
					buf = binary.LittleEndian.AppendUint64(buf, math.Float64bits(v))
				}
				_, err := out.Write(buf)
				return err
			})
		}
	}
	if err := out.Flush(); err != nil { // the first error of all writes
		return err
	}
	_, err = w.Write(sum.Sum(nil))
	return err
}

// SaveState writes the state to path: completely or not at all. It must not be called
// between the first layer of a text and [RankingBuilder.EndText].
func (b *RankingBuilder) SaveState(path string) error {
	if err := atomicfile.Write(path, 0o644, b.writeState); err != nil {
		return fmt.Errorf("save ranking state: %w", err)
	}
	return nil
}

// LoadState continues from a state that SaveState wrote for a builder of the same identity
// and shape; any other is an error that wraps [ErrProfileMismatch]. On error the builder is
// unchanged.
func (b *RankingBuilder) LoadState(path string) error {
	in, err := inputfile.Open(path)
	if err != nil {
		return fmt.Errorf("load ranking state: %w", err)
	}
	defer in.Close()
	if err := b.readState(in); err != nil {
		return fmt.Errorf("read ranking state %s: %w", path, err)
	}
	return nil
}

func (b *RankingBuilder) readState(r io.Reader) error {
	sum := sha256.New()
	in := bufio.NewReaderSize(r, 1<<16)
	var line []byte
	for {
		part, err := in.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if err != bufio.ErrBufferFull || len(line) > maxProfileBytes {
			return fmt.Errorf("no first line, expected one of the format %q", rankingFormat)
		}
	}
	sum.Write(line)
	h, err := b.readHead(line)
	if err != nil {
		return err
	}
	body := io.TeeReader(in, sum)
	sums := make(map[int][]rankingSums, len(h.Added))
	buf := make([]byte, 8*(2*b.headDim+2))
	for _, at := range h.Added {
		heads := b.newSums()
		for i := range heads {
			if err := heads[i].read(body, buf); err != nil {
				return fmt.Errorf("layer %d, KV head %d: %w", at, i, err)
			}
		}
		sums[at] = heads
	}
	var stored [sha256.Size]byte
	if _, err := io.ReadFull(in, stored[:]); err != nil || !bytes.Equal(stored[:], sum.Sum(nil)) {
		return errors.New("the checksum differs: the file is damaged or was edited")
	}
	b.texts, b.sums = h.Texts, sums
	return nil
}

// readHead reads and checks the first line.
func (b *RankingBuilder) readHead(line []byte) (h rankingHead, err error) {
	_, id, err := readFile(bytes.NewReader(line), rankingFormat)
	if err != nil {
		return h, err
	}
	if got, want := identityText(id), identityText(b.id); got != want {
		return h, fmt.Errorf("%w: the state is of %s, this run of %s", ErrProfileMismatch, got, want)
	}
	if err := decodeStrict(line, &h); err != nil {
		return h, err
	}
	if h.Layers != b.layers || h.KVHeads != b.kvHeads || h.HeadDim != b.headDim {
		return h, fmt.Errorf("%w: the state has %d layers of %d KV heads of dimension %d, this run %d of %d of %d",
			ErrProfileMismatch, h.Layers, h.KVHeads, h.HeadDim, b.layers, b.kvHeads, b.headDim)
	}
	if h.Texts < 0 || (h.Texts == 0) != (len(h.Added) == 0) {
		return h, fmt.Errorf("sums of %d layers of %d texts", len(h.Added), h.Texts)
	}
	for i, at := range h.Added {
		if at < 0 || at >= b.layers || i > 0 && at <= h.Added[i-1] {
			return h, fmt.Errorf("sums of layers %v, expected ascending and below %d", h.Added, b.layers)
		}
	}
	return h, nil
}

// read sets empty sums to those of a file; buf holds as many numbers as there are features.
func (s *rankingSums) read(r io.Reader, buf []byte) error {
	err := s.each(func(part []float64) error {
		data := buf[:8*len(part)]
		if _, err := io.ReadFull(r, data); err != nil {
			return fmt.Errorf("the file ends: %w", err)
		}
		for i := range part {
			v := math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
			if v-v != 0 {
				return fmt.Errorf("found %v, expected a finite number", v)
			}
			part[i] = v
		}
		return nil
	})
	if err == nil && (s.n < 0 || s.n > math.MaxInt32) {
		err = fmt.Errorf("found %d entries, expected 0 to %d", s.n, math.MaxInt32)
	}
	return err
}
