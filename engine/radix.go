package engine

// prefixes is a radix tree that finds values by the tokens that they stand for, in
// time proportional to the tokens looked up, however many values there are. The zero
// value is empty.
type radixTree[V any] struct{ root radixNode[V] }

type radixNode[V any] struct {
	edge     []int32                 // tokens from the parent to here
	children map[int32]*radixNode[V] // by the first token of their edge
	value    V
	has      bool
}

// put stores a value, replacing an older one for the same tokens. It retains the
// tokens.
func (t *radixTree[V]) put(tokens []int32, v V) {
	n := &t.root
	for len(tokens) > 0 {
		child := n.children[tokens[0]]
		if child == nil {
			child = &radixNode[V]{edge: tokens}
			n.adopt(child)
		} else if k := common(child.edge, tokens); k < len(child.edge) { // split it
			middle := &radixNode[V]{edge: child.edge[:k]}
			child.edge = child.edge[k:]
			middle.adopt(child)
			n.adopt(middle)
			child = middle
		}
		n, tokens = child, tokens[len(child.edge):]
	}
	n.value, n.has = v, true
}

func (n *radixNode[V]) adopt(child *radixNode[V]) {
	if n.children == nil {
		n.children = map[int32]*radixNode[V]{}
	}
	n.children[child.edge[0]] = child
}

// remove removes the value of exactly these tokens.
func (t *radixTree[V]) remove(tokens []int32) {
	path := []*radixNode[V]{&t.root}
	for len(tokens) > 0 {
		child := path[len(path)-1].children[tokens[0]]
		if child == nil || common(child.edge, tokens) < len(child.edge) {
			return
		}
		path, tokens = append(path, child), tokens[len(child.edge):]
	}
	n := path[len(path)-1]
	var none V
	n.value, n.has = none, false
	for i := len(path) - 1; i > 0 && !path[i].has; i-- {
		n, parent := path[i], path[i-1]
		switch len(n.children) {
		case 0:
			delete(parent.children, n.edge[0])
		case 1: // its child takes its place
			for _, child := range n.children {
				child.edge = append(n.edge[:len(n.edge):len(n.edge)], child.edge...)
				parent.adopt(child)
			}
		}
	}
}

// longest returns n, the length of the longest prefix that the given tokens share with
// those of any value, and such a value, alike; and whole, the most tokens of a value
// that are all a prefix of the given ones, -1 if there is none, and that value,
// within.
func (t *radixTree[V]) longest(tokens []int32) (n int, alike V, whole int, within V) {
	at, whole := &t.root, -1
	if at.has {
		whole, within = 0, at.value
	}
	for {
		var child *radixNode[V]
		if n < len(tokens) {
			child = at.children[tokens[n]]
		}
		if child == nil {
			break
		}
		k := common(child.edge, tokens[n:])
		n, at = n+k, child
		if k < len(child.edge) {
			break
		}
		if at.has {
			whole, within = n, at.value
		}
	}
	for v := range at.all {
		return n, v, whole, within
	}
	return 0, alike, whole, within
}

// along returns the values whose tokens are all a prefix of the given ones.
func (t *radixTree[V]) along(tokens []int32) (values []V) {
	for at := &t.root; at != nil; {
		if at.has {
			values = append(values, at.value)
		}
		if len(tokens) == 0 {
			break
		}
		at = at.children[tokens[0]]
		if at == nil || common(at.edge, tokens) < len(at.edge) {
			break
		}
		tokens = tokens[len(at.edge):]
	}
	return values
}

// extensions returns the values whose tokens begin with all of the given ones.
func (t *radixTree[V]) extensions(tokens []int32) (values []V) {
	at := &t.root
	for len(tokens) > 0 {
		if at = at.children[tokens[0]]; at == nil {
			return nil
		}
		k := common(at.edge, tokens)
		if k < len(at.edge) && k < len(tokens) {
			return nil
		}
		tokens = tokens[k:]
	}
	for v := range at.all {
		values = append(values, v)
	}
	return values
}

// all iterates over the values of a node and of all its descendants.
func (n *radixNode[V]) all(yield func(V) bool) { n.each(yield) }

func (n *radixNode[V]) each(yield func(V) bool) bool {
	if n.has && !yield(n.value) {
		return false
	}
	for _, child := range n.children {
		if !child.each(yield) {
			return false
		}
	}
	return true
}
