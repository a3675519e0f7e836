package model

import (
	"context"
	"math"

	"github.com/lukv/lukv/model/internal/forward"
)

// layerJob follows a prefill that runs layer by layer. prepare is called before
// anything is changed, embed with the run before the first layer; watch returns the
// watcher for the layer that r is about to run, or nil. layerDone does the next piece of
// what follows when a layer is complete, of about limit rows, and says how many rows it ran
// through the layer again and whether there is more; aside is the number of such rows per
// layer. finish is
// called after the last layer, done when the prefill has succeeded, release at the end,
// even if it failed.
type layerJob interface {
	prepare() error
	embed(r *run) error
	watch(r *run, at int) (*forward.Watcher, error)
	aside() int
	layerDone(ctx context.Context, at, limit int) (rows int, more bool, err error)
	finish(ctx context.Context) error
	done()
	release()
}

// wholeLayerDone calls layerDone until there is no more to do.
func wholeLayerDone(ctx context.Context, j layerJob, at int) error {
	for {
		if _, more, err := j.layerDone(ctx, at, math.MaxInt); err != nil || !more {
			return err
		}
	}
}
