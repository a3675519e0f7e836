package kvcache

import "sync"

// arrival says how much of a cache that is being loaded can be used already.
type arrival struct {
	mu     sync.Mutex
	more   sync.Cond // on mu, when one of the following changes
	left   []int     // tensors that each layer still waits for
	layers int       // leading layers that wait for none
	over   bool      // nothing more will come,
	err    error     // because of this, nil if all is there and verified
}

// whileArriving has read fill the cache in another goroutine and calls use. It returns
// when both are done, with the error of read.
func (c *Cache) whileArriving(read func(arrived func(layer int)) error, use func(await func(layer int) error)) error {
	a := &arrival{left: make([]int, c.o.Layers)}
	a.more.L = &a.mu
	for l := range a.left {
		a.left[l] = len(parts) * c.o.KVHeads
	}
	if c.o.DeviceLayers > 0 {
		a.left[0]++ // devices get their pages last
	}
	go func() { a.end(read(a.arrived)) }()
	defer a.wait()
	use(a.await)
	return a.wait()
}

// arrived notes that a tensor of a layer has been read.
func (a *arrival) arrived(layer int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.left[layer]--
	was := a.layers
	for a.layers < len(a.left) && a.left[a.layers] == 0 {
		a.layers++
	}
	if a.layers > was {
		a.more.Broadcast()
	}
}

func (a *arrival) end(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.over, a.err = true, err
	a.more.Broadcast()
}

// await waits until a layer and those before it have been read.
func (a *arrival) await(layer int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.layers <= layer && !a.over {
		a.more.Wait()
	}
	return a.err
}

// wait waits until everything has been read and verified, or has failed.
func (a *arrival) wait() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.over {
		a.more.Wait()
	}
	return a.err
}
