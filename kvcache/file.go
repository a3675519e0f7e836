package kvcache

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/kernels"
	"github.com/lukv/lukv/safetensors"
	"github.com/lukv/lukv/tensor"
)

// A saved cache is a safetensors file. Its metadata is the caller's plus
// formatKey. With L layers, K KV heads, head dimension D, n entries in a head and
// T the element type of the cache, its tensors are:
//
//	options                   I64 [4]        L, K, D, entries per page
//	windows                   I64 [L]        0: none
//	pairs                     I64 [L, K, 3]  n, base, highest dropped position (-1: none)
//	layer.<l>.head.<h>.positions  I32 [n]
//	layer.<l>.head.<h>.keys       T [n, D]
//	layer.<l>.head.<h>.values     T [n, D]
//
// For integers a row is a record (kernels.PageRows.Append): I8 [n, D+4] for I8, U8 [n, D/2+D/16] for
// Q4_0. The keys of layers with wide keys are BF16. Then follow
//
//	extra.<name>              any            the caller's
//	sha256                    U8 [32]        of all preceding bytes of the file
//
// The checksum is the last tensor, so that it also covers the header and the file
// can be written in one pass.
const (
	formatKey     = "lukv_cache"
	formatVersion = "1"
	sumName       = "sha256"
	extraPrefix   = "extra."
)

// shapes are the tensors that describe the others.
var shapes = [...]string{"options", "windows", "pairs"}

// parts are the tensors of a head, in file order.
var parts = [...]string{"positions", "keys", "values"}

func partName(head, heads int, part string) string {
	return fmt.Sprintf("layer.%d.head.%d.%s", head/heads, head%heads, part)
}

func (c *Cache) partType(p *head, part string, n int) tensor.Tensor {
	if part == "positions" {
		return tensor.Tensor{Type: tensor.I32, Shape: []int{n}}
	}
	r := p.mem.side(part)
	saved := elementOf(r.Type()).saved
	return tensor.Tensor{Type: saved, Shape: []int{n, r.Bytes() / saved.Bytes(1)}}
}

// side returns the rows of a part of a head.
func (m *memory) side(part string) *kernels.PageRows {
	if part == "keys" {
		return &m.keys
	}
	return &m.values
}

// Save writes the cache to w: its options and entries, meta, in which the caller
// says what the entries belong to (model, metric, ratio and so on), and extra
// tensors under names of the caller's choice. The key "lukv_cache" is reserved.
// Equal caches give equal bytes. Save needs little memory, whatever the size of
// the cache. It ends within a page when ctx is done, with the cause.
func (c *Cache) Save(ctx context.Context, w io.Writer, meta map[string]string, extra ...safetensors.Named) error {
	if err := c.save(ctx, w, meta, extra); err != nil {
		return fmt.Errorf("save a cache: %w", err)
	}
	return nil
}

// SavedSize returns the number of bytes that Save will write.
func (c *Cache) SavedSize(meta map[string]string, extra ...safetensors.Named) (int64, error) {
	all, err := c.savedMeta(meta)
	var n int64
	if err == nil {
		sources, _ := c.sources(context.Background(), extra) // which are not read
		n, err = safetensors.Size(sources, all)
	}
	if err != nil {
		return 0, fmt.Errorf("size of a saved cache: %w", err)
	}
	return n, nil
}

// savedMeta returns the file's metadata: meta and the format version.
func (c *Cache) savedMeta(meta map[string]string) (map[string]string, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	if _, ok := meta[formatKey]; ok {
		return nil, fmt.Errorf("metadata key %q is reserved", formatKey)
	}
	all := map[string]string{formatKey: formatVersion}
	maps.Copy(all, meta)
	return all, nil
}

func (c *Cache) save(ctx context.Context, w io.Writer, meta map[string]string, extra []safetensors.Named) error {
	all, err := c.savedMeta(meta)
	if err != nil {
		return err
	}
	sources, sum := c.sources(ctx, extra)
	defer sum.end()
	bw := bufio.NewWriterSize(w, pieceBytes)
	if err := safetensors.Write(io.MultiWriter(bw, sum), sources, all); err != nil {
		return err
	}
	return bw.Flush()
}

// sources returns the tensors of the file and the checksum to which everything
// written must also go.
func (c *Cache) sources(ctx context.Context, extra []safetensors.Named) ([]safetensors.Named, *checksum) {
	windows, heads := make([]int64, c.o.Layers), make([]int64, 0, 3*len(c.heads))
	for l := range windows {
		windows[l] = int64(c.window(l))
	}
	for i := range c.heads {
		p := &c.heads[i]
		heads = append(heads, int64(p.n), int64(p.base), int64(p.dropped))
	}
	options := []int64{int64(c.o.Layers), int64(c.o.KVHeads), int64(c.o.HeadDim), int64(c.o.PageEntries)}
	s := []safetensors.Named{
		{Name: "options", Tensor: tensor.FromI64s(options, 4)},
		{Name: "windows", Tensor: tensor.FromI64s(windows, c.o.Layers)},
		{Name: "pairs", Tensor: tensor.FromI64s(heads, c.o.Layers, c.o.KVHeads, 3)},
	}
	buf := saveBuffers{pages: reader{c: c}} // streams run one at a time
	for i := range c.heads {
		for _, part := range parts {
			s = append(s, safetensors.Named{
				Name:   partName(i, c.o.KVHeads, part),
				Tensor: c.partType(&c.heads[i], part, c.heads[i].n),
				Stream: func(w io.Writer) error { return c.writePart(ctx, w, &c.heads[i], part, &buf) },
			})
		}
	}
	for _, x := range extra {
		x.Name = extraPrefix + x.Name
		s = append(s, x)
	}
	sum := &checksum{size: pieceBytes, most: hashAhead}
	s = append(s, safetensors.Named{
		Name:   sumName,
		Tensor: tensor.Tensor{Type: tensor.U8, Shape: []int{sha256.Size}},
		Stream: func(w io.Writer) error {
			_, err := w.Write(sum.end())
			return err
		},
	})
	return s, sum
}

// writePart writes one tensor of a head, a page at a time.
func (c *Cache) writePart(ctx context.Context, w io.Writer, p *head, part string, buf *saveBuffers) error {
	for j := range p.blocks {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(c.o.PageEntries, p.n-j*c.o.PageEntries)
		b := buf.out[:0]
		if part == "positions" {
			for _, x := range c.positions(p, j)[:n] {
				b = binary.LittleEndian.AppendUint32(b, uint32(x))
			}
		} else {
			page, err := buf.pages.page(p, j, len(p.blocks))
			if err != nil {
				return fmt.Errorf("read a page: %w", c.note(err))
			}
			r := p.mem.side(part)
			b = r.Append(*c.o.CPU, b, r.Of(page), n)
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
		buf.out = b
	}
	return nil
}

// saveBuffers is the memory that Save needs besides the cache: pages copied from the
// device, and a page as it is written.
type saveBuffers struct {
	pages reader
	out   []byte
}

// SaveFile saves the cache to a file, see Save. The file appears under its name
// only when it is complete and on disk, replacing any older one; on failure
// nothing is left behind and an older file stays. Only its owner may read the
// file, since it reveals the context.
func (c *Cache) SaveFile(ctx context.Context, path string, meta map[string]string, extra ...safetensors.Named) error {
	save := func(w io.Writer) error { return c.save(ctx, w, meta, extra) }
	if err := atomicfile.Write(path, 0o600, save); err != nil {
		return fmt.Errorf("save a cache to %q: %w", path, err)
	}
	return nil
}

// LoadFile loads a cache that SaveFile wrote, see [File.Load].
func LoadFile(ctx context.Context, path string, o Options) (c *Cache, meta map[string]string, err error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	return f.only(ctx, o)
}

// File is a saved cache whose header has been read, so that its model and method are
// known before its entries take memory. The checksum is not verified before Load.
type File struct {
	name string
	src  *source
	f    *safetensors.File
	meta map[string]string
}

// OpenFile opens a cache that SaveFile wrote. The caller closes it.
func OpenFile(path string) (*File, error) {
	src, err := openSource(path)
	if err != nil {
		return nil, fmt.Errorf("load a cache: %w", err)
	}
	return newFile(path, src)
}

// NewFile reads the header of a cache that Save wrote, size bytes in all. The name is
// for error messages. The caller closes the file, which does not close r.
func NewFile(name string, r io.ReaderAt, size int64) (*File, error) {
	src := &source{from: r}
	if err := src.begin(size); err != nil {
		src.close()
		return nil, fmt.Errorf("load cache %q: %w", name, err)
	}
	return newFile(name, src)
}

func newFile(name string, src *source) (*File, error) {
	s, err := safetensors.Parse(name, src.data)
	var meta map[string]string
	if err == nil {
		meta = s.Metadata()
		switch version, ok := meta[formatKey]; {
		case !ok:
			err = fmt.Errorf("metadata %q is missing: not a saved cache", formatKey)
		case version != formatVersion:
			err = fmt.Errorf("format version %.20q, expected %q: save the cache again with this version", version, formatVersion)
		}
	}
	if err != nil {
		src.close()
		return nil, fmt.Errorf("load cache %q: %w", name, err)
	}
	delete(meta, formatKey)
	return &File{name: name, src: src, f: s, meta: meta}, nil
}

// Meta returns the metadata that Save was given.
func (f *File) Meta() map[string]string { return maps.Clone(f.meta) }

// Extra returns the tensors that Save was given besides the cache, without data.
func (f *File) Extra() map[string]tensor.Tensor {
	extra := map[string]tensor.Tensor{}
	for name, t := range f.f.All() {
		if name, ok := strings.CutPrefix(name, extraPrefix); ok {
			extra[name] = tensor.Tensor{Type: t.Type, Shape: slices.Clone(t.Shape)}
		}
	}
	return extra
}

// Close closes the file; loaded caches stay valid.
func (f *File) Close() error {
	f.src.close()
	return nil
}

// Load reads the cache and the extra tensors given to Save into memory of their own, a
// small piece at a time, while another goroutine hashes the pieces: whatever happens to
// the file, what was checked is what is loaded.
//
// The zero Options take everything from the file. If o sets Layers, KVHeads, HeadDim,
// Type or Windows, they must agree with it. PageEntries may differ, except that the
// entries dropped at the start of a head (Base) must be whole pages. MaxBytes, Account,
// HugePages, LoadHuge, Device and DeviceLayers are taken from o; a file that exceeds MaxBytes
// fails with ErrFull. A file that is truncated, altered, of another version or not a
// saved cache is an error, and then no memory is held; so it is when ctx is done, which
// ends Load within a piece.
func (f *File) Load(ctx context.Context, o Options) (*Cache, map[string]tensor.Tensor, error) {
	extra := map[string]tensor.Tensor{}
	c, err := f.load(ctx, o, extra, nil)
	if err != nil {
		return nil, nil, err
	}
	return c, extra, nil
}

// LoadWhile is [File.Load], and meanwhile calls use with the cache that is being loaded.
// Lengths are right from the start; entries may be read, and others appended after them,
// in layer l once await(l) has returned nil: it waits until this layer and those before
// it have been read, on a device until everything has. Nothing is verified before
// LoadWhile returns. If loading fails, await returns the error, the cache is closed, and
// whatever use made of it has to be forgotten.
func (f *File) LoadWhile(ctx context.Context, o Options, use func(c *Cache, await func(layer int) error)) (*Cache, map[string]tensor.Tensor, error) {
	extra := map[string]tensor.Tensor{}
	c, err := f.load(ctx, o, extra, use)
	if err != nil {
		return nil, nil, err
	}
	return c, extra, nil
}

// only loads the cache without the extra tensors.
func (f *File) only(ctx context.Context, o Options) (*Cache, map[string]string, error) {
	c, err := f.load(ctx, o, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	return c, f.meta, nil
}

// load puts the extra tensors into extra, if it is not nil. use may be nil.
func (f *File) load(ctx context.Context, o Options, extra map[string]tensor.Tensor, use func(*Cache, func(int) error)) (*Cache, error) {
	c, err := f.open(ctx, o, extra, use)
	if err != nil {
		return nil, fmt.Errorf("load cache %q: %w", f.name, err)
	}
	c.checkAll()
	return c, nil
}

func (f *File) open(ctx context.Context, o Options, extra map[string]tensor.Tensor, use func(*Cache, func(int) error)) (*Cache, error) {
	for _, name := range shapes {
		if t, ok := f.f.Tensor(name); ok {
			if err := f.src.fetch(t.Data); err != nil {
				return nil, err
			}
		}
	}
	o, err := savedOptions(f.f, o)
	if err != nil {
		return nil, err
	}
	c, err := New(o)
	if err != nil {
		return nil, err
	}
	targets, err := c.prepare(f.f)
	if err == nil {
		read := func(ahead int, arrived func(layer int)) error {
			return c.read(ctx, f.f, f.src, targets, extra, ahead, arrived)
		}
		if use == nil {
			err = read(hashAhead, func(int) {})
		} else {
			beside := func(arrived func(layer int)) error { return read(besideAhead, arrived) }
			err = c.whileArriving(beside, func(await func(int) error) { use(c, await) })
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for _, m := range c.pool.hosts() {
		m.arena.Settle()
	}
	return c, nil
}

// savedOptions returns the options of the saved cache, with o's MaxBytes,
// PageEntries, Account, HugePages, LoadHuge and device. Anything else that o sets must agree.
func savedOptions(f *safetensors.File, o Options) (Options, error) {
	v, err := integers(f, "options", 4)
	if err != nil {
		return o, err
	}
	windows, err := integers(f, "windows", -1)
	if err != nil {
		return o, err
	}
	for _, x := range []struct {
		what  string
		found int64
		want  *int
	}{
		{"layers", v[0], &o.Layers},
		{"KV heads", v[1], &o.KVHeads},
		{"head dimension", v[2], &o.HeadDim},
	} {
		if x.found < 1 || x.found > maxHeads {
			return o, fmt.Errorf("%s: found %d, expected 1 to %d", x.what, x.found, maxHeads)
		}
		if *x.want != 0 && int64(*x.want) != x.found {
			return o, fmt.Errorf("%s: found %d, expected %d", x.what, x.found, *x.want)
		}
		*x.want = int(x.found)
	}
	if o.PageEntries == 0 {
		if v[3] < 16 || v[3] > 1024 {
			return o, fmt.Errorf("entries per page: found %d, expected 16 to 1024", v[3])
		}
		o.PageEntries = int(v[3])
	}
	if len(windows) != o.Layers {
		return o, fmt.Errorf("found %d windows for %d layers", len(windows), o.Layers)
	}
	found := make([]int, o.Layers)
	for l, w := range windows {
		if w < 0 || w > math.MaxInt32 {
			return o, fmt.Errorf("window of layer %d: found %d, expected 0 to %d", l, w, math.MaxInt32)
		}
		found[l] = int(w)
		if o.Windows != nil && (len(o.Windows) != o.Layers || o.Windows[l] != found[l]) {
			return o, fmt.Errorf("windows: found %d in layer %d, expected windows %d", found[l], l, o.Windows)
		}
	}
	o.Windows = found
	// One row per head in the file, so that it bounds the memory that a cache takes.
	table, ok := f.Tensor("pairs")
	if !ok || table.Type != tensor.I64 || !table.HasShape(o.Layers, o.KVHeads, 3) {
		return o, fmt.Errorf("tensor \"pairs\": found %v, expected I64[%d, %d, 3]", table, o.Layers, o.KVHeads)
	}
	return savedTypes(f, o)
}

// savedTypes adds the types of a saved cache to its options.
func savedTypes(f *safetensors.File, o Options) (Options, error) {
	var types [2]tensor.Type // of keys that are not wide, of values
	wide := make([]bool, o.Layers)
	for l := range wide {
		var found [2]tensor.Type
		for i, part := range parts[1:] {
			name := partName(l*o.KVHeads, o.KVHeads, part)
			t, ok := f.Tensor(name)
			if !ok {
				return o, fmt.Errorf("tensor %q is missing", name)
			}
			found[i] = typeOfSaved(t.Type)
		}
		types[1] = cmp.Or(types[1], found[1])
		if wide[l] = (kernels.PageLayout{Type: found[1]}).IntValues() && found[0] == tensor.BF16; !wide[l] {
			types[0] = cmp.Or(types[0], found[0])
		}
	}
	types[0] = cmp.Or(types[0], types[1])
	values := types[1]
	if !(kernels.PageLayout{Type: values}).IntValues() || values == types[0] {
		values = 0 // where they should be the same, the shapes of the tensors tell
	}
	switch {
	case o.Type != 0 && o.Type != types[0]:
		return o, fmt.Errorf("element type: found %v, expected %v", types[0], o.Type)
	case o.Values != 0 && o.Values != types[1]:
		return o, fmt.Errorf("element type of values: found %v, expected %v", types[1], o.Values)
	}
	o.Type, o.Values, o.WideKeys = types[0], values, nil
	if slices.Contains(wide, true) {
		o.WideKeys = wide
	}
	return o, nil
}

// integers returns a one-dimensional I64 tensor of n elements, or of any length if n is -1.
func integers(f *safetensors.File, name string, n int) ([]int64, error) {
	t, ok := f.Tensor(name)
	if !ok {
		return nil, fmt.Errorf("tensor %q is missing", name)
	}
	if t.Type != tensor.I64 || len(t.Shape) != 1 || n >= 0 && t.Shape[0] != n {
		return nil, fmt.Errorf("tensor %q: found %v, expected I64 with one dimension", name, t)
	}
	return t.Int64s(nil), nil
}

// target is where a tensor of the file goes.
type target struct {
	head int
	part string
}

// prepare gives the heads of c, an empty cache with the options of the file, their
// lengths and room for their entries. It returns where the tensors of the file go.
func (c *Cache) prepare(f *safetensors.File) (map[string]target, error) {
	if sum, ok := f.Tensor(sumName); !ok || sum.Type != tensor.U8 || !sum.HasShape(sha256.Size) {
		return nil, fmt.Errorf("tensor %q: found %v, expected U8[%d]", sumName, sum, sha256.Size)
	}
	// Shapes are checked first, so that no more is allocated than the file holds.
	table, _ := f.Tensor("pairs")
	numbers := table.Int64s(nil) // [Layers, KVHeads, 3], checked with the options
	targets := make(map[string]target, 3*len(c.heads))
	for i := range c.heads {
		n, base, dropped := numbers[3*i], numbers[3*i+1], numbers[3*i+2]
		if err := c.checkSaved(i, n, base, dropped); err != nil {
			return nil, fmt.Errorf("layer %d head %d: %w", i/c.o.KVHeads, i%c.o.KVHeads, err)
		}
		for _, part := range parts {
			name := partName(i, c.o.KVHeads, part)
			t, ok := f.Tensor(name)
			want := c.partType(&c.heads[i], part, int(n))
			if !ok || t.Type != want.Type || !slices.Equal(t.Shape, want.Shape) {
				return nil, fmt.Errorf("tensor %q: found %v, expected %v", name, t, want)
			}
			targets[name] = target{i, part}
		}
	}
	own := 0
	for name := range f.All() {
		if !strings.HasPrefix(name, extraPrefix) {
			own++
		}
	}
	if own != len(targets)+4 {
		return nil, fmt.Errorf("found %d tensors, expected %d", own, len(targets)+4)
	}
	if c.o.LoadHuge {
		for _, m := range c.pool.hosts() {
			pages := 0
			for i := range c.heads {
				if c.heads[i].mem == m {
					pages += pagesFor(int(numbers[3*i]), c.o.PageEntries)
				}
			}
			_ = m.arena.Expect(pages) // without it, growing gets by, or says why not
		}
	}
	for i := range c.heads {
		p := &c.heads[i]
		n := int(numbers[3*i])
		if err := c.grow(p, n); err != nil {
			return nil, err
		}
		p.n, p.base, p.dropped = n, int(numbers[3*i+1]), int32(numbers[3*i+2])
	}
	return targets, nil
}

// checkSaved checks the saved numbers of a head: entries, base, dropped position.
func (c *Cache) checkSaved(i int, n, base, dropped int64) error {
	switch {
	case n < 0 || n > math.MaxInt32:
		return fmt.Errorf("found %d entries, expected 0 to %d", n, math.MaxInt32)
	case dropped < -1 || dropped > math.MaxInt32 || base < 0 || base > dropped+1:
		return fmt.Errorf("found %d entries dropped up to position %d", base, dropped)
	case dropped >= 0 && c.window(i/c.o.KVHeads) == 0:
		return fmt.Errorf("found entries dropped up to position %d in a layer without a window", dropped)
	case base%int64(c.o.PageEntries) != 0:
		return fmt.Errorf("found %d entries dropped, which are not whole pages of %d: load with smaller pages", base, c.o.PageEntries)
	}
	return nil
}

// pieceBytes is how much is read and hashed at a time, more if a page is larger: enough
// that handing over a piece costs little compared to hashing it.
const pieceBytes = 128 << 10

// hashAhead is how many pieces hashing may fall behind: enough that whoever is faster rarely
// sleeps. besideAhead is that while somebody uses what has been loaded, who may take the
// processor that hashes for some milliseconds.
const (
	hashAhead   = 8
	besideAhead = 24
)

// read copies the tensors, in file order, to their heads and compares the checksum, for
// which hashing may fall ahead pieces behind. It calls arrived after every tensor of a layer.
func (c *Cache) read(ctx context.Context, f *safetensors.File, src *source, targets map[string]target, extra map[string]tensor.Tensor, ahead int, arrived func(layer int)) error {
	size := 0
	for _, t := range f.All() {
		size += len(t.Data)
	}
	sum := &checksum{size: min(max(pieceBytes, c.largestSide()), len(src.data)), most: ahead}
	defer sum.end()
	sum.Write(src.data[:len(src.data)-size])
	var found []byte
	var wrong error                  // a correct checksum does not imply that positions ascend
	later := make(map[target][]byte) // keys and values for devices, which get whole pages
	for name, t := range f.All() {
		if found != nil && len(t.Data) > 0 {
			return fmt.Errorf("tensor %q follows the checksum", name)
		}
		s, entries := targets[name]
		var err error
		switch {
		case name == sumName:
			found = t.Data
			err = src.fetch(found)
		case entries:
			if err = c.readTensor(ctx, s, t.Data, src, sum); s.part == "positions" {
				wrong = cmp.Or(wrong, c.checkOne(s.head))
			} else if c.heads[s.head].mem.device != nil {
				later[s] = t.Data
			}
		case slices.Contains(shapes[:], name): // hash the copy that was used
			sum.Write(t.Data)
		default:
			var to []byte
			if name, ok := strings.CutPrefix(name, extraPrefix); ok && extra != nil {
				x := tensor.Make(t.Type, t.Shape...)
				extra[name], to = x, x.Data
			}
			err = src.stream(ctx, t.Data, 1, sum, func(b []byte) { to = to[copy(to, b):] })
		}
		if err != nil {
			return err
		}
		if entries && wrong == nil { // no layer whose positions are wrong is ever used
			arrived(s.head / c.o.KVHeads)
		}
	}
	if want := sum.end(); !bytes.Equal(found, want) {
		return fmt.Errorf("checksum: found %x, expected %x: the file was altered", found, want)
	}
	if wrong != nil {
		return wrong
	}
	w := writer{c: c}
	for i := range c.o.DeviceLayers * c.o.KVHeads {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := c.upload(&w, &c.heads[i], later[target{i, "keys"}], later[target{i, "values"}]); err != nil {
			return fmt.Errorf("write layer %d head %d: %w", i/c.o.KVHeads, i%c.o.KVHeads, err)
		}
	}
	return nil
}

// readTensor reads one tensor of a head. Keys and values for a device go to their place
// in the image.
func (c *Cache) readTensor(ctx context.Context, s target, data []byte, src *source, sum *checksum) error {
	p, j := &c.heads[s.head], 0
	switch {
	case s.part == "positions":
		return src.stream(ctx, data, 4*c.o.PageEntries, sum, func(b []byte) {
			for ; len(b) > 0; j++ {
				pos := c.positions(p, j)[:min(c.o.PageEntries, len(b)/4)]
				for e := range pos {
					pos[e] = int32(binary.LittleEndian.Uint32(b[4*e:]))
				}
				b = b[4*len(pos):]
			}
		})
	case p.mem.device != nil && src.from == nil: // the image is complete, and the caller's
		sum.Write(data)
		return nil
	case p.mem.device != nil:
		return src.stream(ctx, data, 1, sum, func(b []byte) { data = data[copy(data, b):] })
	}
	r := p.mem.side(s.part)
	return src.stream(ctx, data, c.o.PageEntries*r.Bytes(), sum, func(b []byte) {
		for ; len(b) > 0; j++ {
			b = c.readPart(r, p.pages[j], min(c.o.PageEntries, len(b)/r.Bytes()), b)
		}
	})
}

// largestSide returns the bytes of the keys or values of a page, of the largest.
func (c *Cache) largestSide() int {
	n := 0
	for _, m := range c.pool.hosts() {
		n = max(n, c.o.PageEntries*max(m.keys.Bytes(), m.values.Bytes()))
	}
	return n
}

// readPart stores n rows from b in a page and returns the rest of b.
func (c *Cache) readPart(r *kernels.PageRows, page kernels.Page, n int, b []byte) []byte {
	r.Set(*c.o.CPU, r.Of(page), b[:n*r.Bytes()])
	return b[n*r.Bytes():]
}

// upload writes a head's keys and values from a file to its pages on a device.
func (c *Cache) upload(w *writer, p *head, keys, values []byte) error {
	for j := range p.blocks {
		page, err := w.page(p, j, false)
		if err != nil {
			return err
		}
		n := min(c.o.PageEntries, p.n-j*c.o.PageEntries)
		keys, values = c.readPart(&p.mem.keys, page, n, keys), c.readPart(&p.mem.values, page, n, values)
	}
	return w.flush()
}
