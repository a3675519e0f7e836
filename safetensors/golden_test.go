package safetensors

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// malformedDir returns the folder of the cases, see its README.md;
// LUKV_GOLDEN_MALFORMED names another folder with the same layout.
func malformedDir() string {
	if dir := os.Getenv("LUKV_GOLDEN_MALFORMED"); dir != "" {
		return dir
	}
	return filepath.Join("testdata", "malformed")
}

// TestGoldenMalformed checks the file cases and those folder cases that concern the
// index and the shards. What a model needs beyond that (its config, names and
// shapes) is checked where models are loaded.
func TestGoldenMalformed(t *testing.T) {
	dir := malformedDir()
	text, err := os.ReadFile(filepath.Join(dir, "cases.json"))
	require.NoError(t, err)
	var list struct {
		Cases []struct{ Name, Kind, Path, Expect, Why string }
	}
	require.NoError(t, json.Unmarshal(text, &list))
	// For our own folders, names tell where a fault must be found; for others', loading
	// the model must find it at the latest.
	foreign := os.Getenv("LUKV_GOLDEN_MALFORMED") != ""
	checks, skipped := 0, 0
	for _, c := range list.Cases {
		path := filepath.Join(dir, filepath.FromSlash(c.Path))
		expect := c.Expect
		if c.Kind == "folder" {
			expect = indexLevel(c.Name, c.Expect)
		}
		if expect == "" {
			skipped++
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			start, before := time.Now(), allocated()
			err := openAny(c.Kind, path)
			took, grown := time.Since(start), allocated()-before
			switch {
			case expect == "ok" && err != nil:
				t.Errorf("got error %q, expected none: %s", err, c.Why)
			case expect == "error" && err == nil && (c.Kind == "file" || !foreign):
				t.Errorf("got no error, expected one: %s", c.Why)
			case err != nil && !strings.Contains(err.Error(), filepath.Base(path)):
				t.Errorf("error does not name the file: %s", err)
			}
			if took > 10*time.Second { // a busy machine may stop for a while
				t.Errorf("took %v, expected at most a second on an idle machine", took)
			}
			if grown > 4<<20 {
				t.Errorf("allocated %d bytes, expected at most 4 MiB", grown)
			}
			if err != nil {
				t.Log(err)
			}
		})
		checks++
	}
	fmt.Printf("golden malformed (safetensors): %d checks, %d skipped (matter of model configs and weights)\n", checks, skipped)
	t.Logf("golden malformed (safetensors): %d checks, %d skipped (matter of model configs and weights)", checks, skipped)
	require.NotZero(t, checks)
}

// indexLevel returns the expected result of opening the folder's tensors without a
// config, "" if that cannot decide the case.
func indexLevel(name, expect string) string {
	for _, prefix := range []string{"ok-", "index-", "shard-", "missing-shard", "no-weights"} {
		if strings.HasPrefix(name, prefix) {
			return expect
		}
	}
	return ""
}

func openAny(kind, path string) error {
	if kind == "folder" {
		c, err := OpenCheckpoint(path)
		if err != nil {
			return err
		}
		for name, x := range c.All() {
			touch(name, x.Data)
		}
		return c.Close()
	}
	f, err := Open(path)
	if err != nil {
		return err
	}
	for name, x := range f.All() {
		touch(name, x.Data)
	}
	return f.Close()
}

var sink byte

// touch reads the first and last byte, so that a view outside the mapping
// faults.
func touch(name string, data []byte) {
	if len(data) > 0 {
		sink += data[0] + data[len(data)-1] + byte(len(name))
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// Whatever the outcome of opening, nothing may stay mapped.
func TestNothingStaysMapped(t *testing.T) {
	const maps = "/proc/self/maps"
	if _, err := os.Stat(maps); err != nil {
		t.Skipf("this system does not list mappings: %v", err)
	}
	paths, err := filepath.Glob(filepath.Join(malformedDir(), "f*", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		kind := "file"
		if info, err := os.Stat(path); err == nil && info.IsDir() {
			kind = "folder"
		}
		_ = openAny(kind, path) // an error in most cases, as TestGoldenMalformed checks
	}
	text, err := os.ReadFile(maps)
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, ".safetensors") {
			t.Errorf("still mapped: %s", line)
		}
	}
}

// A checkpoint of real size is opened in place: in no time, without memory for its
// data. The file is sparse and takes no disk space.
func TestOpenLargeFile(t *testing.T) {
	if runtime.GOOS != "linux" || strconv.IntSize < 64 {
		t.Skip("needs sparse files and 64-bit addresses")
	}
	const rows, cols = 1 << 16, 40000 // 5.2 GB
	path := filepath.Join(t.TempDir(), SingleName)
	header := `{"big":{"dtype":"BF16","shape":[65536,40000],"data_offsets":[0,5242880000]}}`
	require.NoError(t, os.WriteFile(path, image(header), 0o600))
	require.NoError(t, os.Truncate(path, int64(8+len(header))+2*rows*cols))
	before := allocated()
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	x, ok := f.Tensor("big")
	require.True(t, ok)
	require.Equal(t, []int{rows, cols}, x.Shape)
	require.Equal(t, byte(0), x.Row(rows - 1).Data[2*cols-1])
	require.Less(t, allocated()-before, uint64(1<<20))
}
