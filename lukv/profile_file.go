package lukv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/lukv/solve"

	"github.com/lukv/lukv/internal/inputfile"
)

const (
	profileFormat = "lukv profile"
	stateFormat   = "lukv profile state"
	fileVersion   = 1

	// maxProfileBytes bounds how much of a profile or state file is read:
	// far more than 99·1000·256 numbers of 20 digits is not plausible.
	maxProfileBytes = 1 << 29
)

// fileHead begins the JSON of profiles and of builders' states. Checksum covers the
// compact JSON of the whole file with Checksum empty, so layout and whitespace do
// not matter.
type fileHead struct {
	Format   string          `json:"format"`
	Version  int             `json:"version"`
	Checksum string          `json:"checksum"`
	Identity ProfileIdentity `json:"identity"`
	Layers   int             `json:"layers"`
	KVHeads  int             `json:"kv_heads"`
	Excluded []int           `json:"excluded_layers,omitempty"`
	Pairs    int             `json:"pairs"`
}

// matches reports a state whose shape differs from a builder's.
func (h *fileHead) matches(layers, kvHeads int, excluded []int) error {
	if h.Layers != layers || h.KVHeads != kvHeads || !slices.Equal(h.Excluded, excluded) {
		return fmt.Errorf("%w: the state has %d layers of %d KV heads without %v, this run %d of %d without %v",
			ErrProfileMismatch, h.Layers, h.KVHeads, h.Excluded, layers, kvHeads, excluded)
	}
	return nil
}

// profileFile is the JSON of a profile or, with sums as Values, of a builder's state.
type profileFile struct {
	fileHead
	MinContext int `json:"min_context"`
	MaxContext int `json:"max_context"`

	CalibrationData

	*OutputErrors

	LossMap *LossMap `json:"loss_map,omitempty"`

	// Values holds ratios (profile) or sums of ratios over pairs (state), one
	// row of L·K numbers per level, layer-major.
	Values [][]float64 `json:"values"`
}

func (f *profileFile) checksum() (string, error) {
	plain := *f
	plain.Checksum = ""
	return checksumOf(&plain)
}

// checksumOf returns the checksum of a file whose Checksum is empty.
func checksumOf(file any) (string, error) {
	data, err := json.Marshal(file)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// split cuts flat values [99][L·K] into rows.
func (f *profileFile) split(flat []float64) {
	n := f.Layers * f.KVHeads
	f.Values = make([][]float64, solve.Levels)
	for i := range f.Values {
		f.Values[i] = flat[i*n : (i+1)*n]
	}
}

// write writes the file with one level per line. The bytes depend on nothing
// but the content.
func (f *profileFile) write(w io.Writer) error {
	var err error
	if f.Checksum, err = f.checksum(); err != nil {
		return err
	}
	head := *f
	head.Values, head.OutputErrors, head.CalibrationData = [][]float64{}, nil, CalibrationData{}
	data, err := json.MarshalIndent(&head, "", "  ")
	if err != nil {
		return err
	}
	var buf bytes.Buffer
	buf.Write(bytes.TrimSuffix(data, []byte("\"values\": []\n}")))
	if err := f.CalibrationData.write(&buf); err != nil {
		return err
	}
	if f.OutputErrors != nil {
		if err := f.OutputErrors.write(&buf); err != nil {
			return err
		}
	}
	buf.WriteString("\"values\": [\n")
	var num []byte
	for i, row := range f.Values {
		sep := byte('[')
		for _, v := range row {
			buf.WriteByte(sep)
			num = strconv.AppendFloat(num[:0], v, 'g', -1, 64)
			buf.Write(num)
			sep = ','
		}
		buf.WriteByte(']')
		if i+1 < len(f.Values) {
			buf.WriteByte(',')
		}
		buf.WriteByte('\n')
	}
	buf.WriteString("]}\n")
	_, err = w.Write(buf.Bytes())
	return err
}

// write writes what there is as object members, each followed by a comma, one head per
// line.
func (d *CalibrationData) write(buf *bytes.Buffer) error {
	member := func(name string, heads any, there bool) error {
		if !there {
			return nil
		}
		value, err := json.Marshal(heads)
		fmt.Fprintf(buf, "%q: %s,\n  ", name, bytes.ReplaceAll(value, []byte("},{"), []byte("},\n{")))
		return err
	}
	if err := member("query_centers", d.QueryCenters, d.QueryCenters != nil); err != nil {
		return err
	}
	return member("rankings", d.Rankings, d.Rankings != nil)
}

// write writes the measurements as object members, one row per line, each
// member followed by a comma.
func (e *OutputErrors) write(buf *bytes.Buffer) error {
	compact, err := json.Marshal(e)
	if err != nil {
		return err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(compact, &members); err != nil {
		return err
	}
	for _, name := range parameterNames(reflect.TypeFor[OutputErrors]()) {
		value, ok := members[name]
		if !ok {
			continue
		}
		// Break the line between rows.
		value = bytes.ReplaceAll(value, []byte("],["), []byte("],\n["))
		fmt.Fprintf(buf, "%q: %s,\n  ", name, value)
	}
	return nil
}

// readFile reads a file of the given format and this version, no more than is
// plausible. id is the file's identity, not validated.
func readFile(r io.Reader, format string) (data []byte, id ProfileIdentity, err error) {
	data, err = io.ReadAll(io.LimitReader(r, maxProfileBytes+1))
	if err != nil {
		return nil, id, err
	}
	if len(data) > maxProfileBytes {
		return nil, id, fmt.Errorf("more than %d bytes", maxProfileBytes)
	}
	// Format and version first: a file of another kind or version deserves
	// a better error than an unknown field.
	var kind struct {
		Format   string          `json:"format"`
		Version  int             `json:"version"`
		Identity ProfileIdentity `json:"identity"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, id, fmt.Errorf("%w, expected an object of the format %q", err, format)
	}
	if kind.Format != format {
		return nil, id, fmt.Errorf("format %q, expected %q", kind.Format, format)
	}
	if kind.Version != fileVersion {
		return nil, id, fmt.Errorf("version %d, expected %d", kind.Version, fileVersion)
	}
	return data, kind.Identity, nil
}

// readState reads the state of a builder of the given identity.
func readState(r io.Reader, want ProfileIdentity) ([]byte, error) {
	data, id, err := readFile(r, stateFormat)
	if err != nil {
		return nil, err
	}
	if got, want := identityText(id), identityText(want); got != want {
		return nil, fmt.Errorf("%w: the state is of %s, this run of %s", ErrProfileMismatch, got, want)
	}
	return data, nil
}

// parseProfileFile checks everything but the meaning of the values, which it
// returns flat.
func parseProfileFile(data []byte) (*profileFile, []float64, error) {
	var f profileFile
	if err := decodeStrict(data, &f); err != nil {
		return nil, nil, err
	}
	want, err := f.checksum()
	if err != nil {
		return nil, nil, err
	}
	if f.Checksum != want {
		return nil, nil, fmt.Errorf("checksum %q, expected %q: the file is damaged or was edited", f.Checksum, want)
	}
	if err := f.Identity.Validate(); err != nil {
		return nil, nil, err
	}
	if f.Layers < 1 || f.KVHeads < 1 || f.Pairs < 0 || len(f.Values) != solve.Levels {
		return nil, nil, fmt.Errorf("%d levels of %d layers of %d KV heads over %d pairs, expected %d levels", len(f.Values), f.Layers, f.KVHeads, f.Pairs, solve.Levels)
	}
	n := len(f.Values[0])
	if f.Layers > n || n%f.Layers != 0 || n/f.Layers != f.KVHeads {
		return nil, nil, fmt.Errorf("level 1 has %d values, expected %d layers of %d KV heads", n, f.Layers, f.KVHeads)
	}
	flat := make([]float64, 0, solve.Levels*n)
	for i, row := range f.Values {
		if len(row) != n {
			return nil, nil, fmt.Errorf("level %d has %d values, expected %d", i+1, len(row), n)
		}
		flat = append(flat, row...)
	}
	return &f, flat, nil
}

// Write writes the profile as JSON with a checksum. Equal profiles give equal
// bytes.
func (p *Profile) Write(w io.Writer) error {
	if err := p.file().write(w); err != nil {
		return fmt.Errorf("write profile: %w", err)
	}
	return nil
}

func (p *Profile) file() *profileFile {
	f := &profileFile{
		fileHead: fileHead{
			Format: profileFormat, Version: fileVersion, Identity: p.Identity,
			Layers: p.layers, KVHeads: p.kvHeads, Excluded: p.Excluded, Pairs: p.Pairs,
		},
		MinContext: p.MinContext, MaxContext: p.MaxContext, CalibrationData: p.CalibrationData, OutputErrors: p.OutputErrors,
		LossMap: p.LossMap,
	}
	f.split(p.ratios)
	return f
}

// ReadProfile reads what [Profile.Write] wrote and checks its checksum and
// sanity.
func ReadProfile(r io.Reader) (*Profile, error) {
	data, _, err := readFile(r, profileFormat)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	f, flat, err := parseProfileFile(data)
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	p, err := NewProfile(f.Identity, f.Layers, f.KVHeads, flat, f.Excluded)
	if err == nil && f.OutputErrors != nil {
		p.OutputErrors = f.OutputErrors
		err = p.checkOutputErrors()
	}
	if err == nil {
		p.CalibrationData = f.CalibrationData
		if err = p.CalibrationData.check(p.layers, p.kvHeads); err != nil {
			err = fmt.Errorf("profile: %w", err)
		}
	}
	if err == nil && f.LossMap != nil {
		p.LossMap = f.LossMap
		err = p.LossMap.check()
	}
	if err != nil {
		return nil, fmt.Errorf("read profile: %w", err)
	}
	p.Pairs, p.MinContext, p.MaxContext = f.Pairs, f.MinContext, f.MaxContext
	return p, nil
}

// LoadProfile reads a profile file.
func LoadProfile(path string) (*Profile, error) {
	in, err := inputfile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("load profile: %w", err)
	}
	defer in.Close()
	p, err := ReadProfile(in)
	if err != nil {
		return nil, fmt.Errorf("load profile %s: %w", path, err)
	}
	return p, nil
}

// Save writes the profile to path: completely or, on error, not at all.
func (p *Profile) Save(path string) error {
	if err := atomicfile.Write(path, 0o644, p.Write); err != nil {
		return fmt.Errorf("save profile: %w", err)
	}
	return nil
}

// Digest identifies the profile's whole content: the checksum of its file.
func (p *Profile) Digest() (string, error) {
	sum, err := p.file().checksum()
	if err != nil {
		return "", fmt.Errorf("profile digest: %w", err)
	}
	return sum, nil
}
