package hub

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/lukv/lukv/internal/filelock"
)

// acquire takes the lock of a file's content. It waits for another process that
// holds it, and reports this to waiting. The lock file stays, as with the Python
// tools: removing it would let two processes hold locks on two files of the same
// name.
func acquire(ctx context.Context, path string, waiting func(what string)) (release func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	said := false
	for {
		ok, err := filelock.Try(f)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if ok {
			if said {
				waiting("")
			}
			return func() { f.Close() }, nil
		}
		if !said {
			said = true
			waiting("another process is fetching this file")
		}
		if err := sleepReally(ctx, 100*time.Millisecond); err != nil {
			f.Close()
			return nil, fmt.Errorf("wait for the lock %s: %w", path, err)
		}
	}
}
