package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lukv/lukv/internal/atomicfile"
	"github.com/lukv/lukv/internal/inputfile"
)

// A digest is kept in a file named after the paths of the weights:
//
//	lukv digest 1
//	sha256:…                                the model's identity
//	SIZE TIME INODE "PATH"                  of each file, time in ns since 1970
//	sha256:…                                the digest
//	…                                       sha256 of all lines above

const (
	digestFormat   = "lukv digest 1"
	maxDigestCache = 1 << 20 // bytes of such a file

	// settled is how long ago a file must have changed: another change within the
	// resolution of the file system's clock would have the same time.
	settled = 2 * time.Second
)

// digestCache finds and keeps the digest of weights.
type digestCache struct {
	w        *Weights
	identity string
	folder   string // "" for none
	log      *slog.Logger
}

// fileStamps identifies the files of the weights, as they were when opened.
type fileStamps struct {
	paths  string // a line each
	stamps string // a line each
	newest time.Time
}

// stampFiles returns the stamps of the weights' files, and nothing if there is no folder
// for digests, the weights are not files, or one is no longer the file that was opened.
func (c *digestCache) stampFiles() fileStamps {
	if c.w.source == nil || c.folder == "" {
		return fileStamps{}
	}
	var s fileStamps
	for _, f := range c.w.source.Stamps() {
		path, err := filepath.Abs(f.path)
		if err != nil || f.info == nil {
			return fileStamps{}
		}
		now, err := os.Stat(path)
		if err != nil || stamp(now) != stamp(f.info) {
			return fileStamps{}
		}
		s.paths += path + "\n"
		s.stamps += fmt.Sprintf("%s %q\n", stamp(now), path)
		s.newest = slices.MaxFunc([]time.Time{s.newest, now.ModTime()}, time.Time.Compare)
	}
	return s
}

// fileStamp is a file of weights as it was when it was opened.
type fileStamp struct {
	path string
	info fs.FileInfo // nil for one in memory
}

// stamp returns text that tells states of a file apart.
func stamp(info fs.FileInfo) string {
	return fmt.Sprintf("%d %d %d", info.Size(), info.ModTime().UnixNano(), inode(info))
}

func (c *digestCache) file(s fileStamps) string {
	sum := sha256.Sum256([]byte(s.paths))
	return filepath.Join(c.folder, hex.EncodeToString(sum[:16])+".digest")
}

// lines returns the lines of the file before the digest.
func (c *digestCache) lines(s fileStamps) string {
	return digestFormat + "\n" + c.identity + "\n" + s.stamps
}

// known returns the digest that was kept for exactly these files, "" if there is
// none or its file is damaged.
func (c *digestCache) known(s fileStamps) string {
	if s.stamps == "" {
		return ""
	}
	data, err := inputfile.Read(c.file(s), maxDigestCache)
	if err != nil {
		return ""
	}
	digest, ok := strings.CutPrefix(string(data), c.lines(s))
	digest, _, _ = strings.Cut(digest, "\n")
	if !ok || string(data) != signed(c.lines(s)+digest+"\n") {
		return ""
	}
	return digest
}

// keep writes the digest of files that have not changed meanwhile or just before.
func (c *digestCache) keep(s fileStamps, digest string) {
	if s.stamps == "" || c.stampFiles().stamps != s.stamps || time.Since(s.newest) < settled {
		return
	}
	err := os.MkdirAll(c.folder, 0o700)
	if err == nil {
		err = atomicfile.Write(c.file(s), 0o600, func(w io.Writer) error {
			_, err := io.WriteString(w, signed(c.lines(s)+digest+"\n"))
			return err
		})
	}
	if err != nil {
		c.log.Warn("the digest of the weights cannot be kept", "error", err)
	}
}

// signed returns a text with its hash appended.
func signed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return text + hex.EncodeToString(sum[:]) + "\n"
}
