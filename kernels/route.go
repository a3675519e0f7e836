package kernels

// Route chooses the experts of a token in a mixture of experts: those with the largest
// logits, as many as there are places in experts, in descending order; of equal logits, the
// lower index comes first, and NaN counts as -Inf. weights[i] becomes the softmax of
// expert experts[i] over all logits: with m the largest logit, Exp(logit - m) divided by the
// sum of all of these in ascending order. With normalise, the weights are then divided by
// their own sum, taken in the order of the places.
//
// experts and weights have the same length, at most that of logits.
func Route(experts []int32, weights, logits []float32, normalise bool) {
	for i := range experts {
		experts[i] = -1
	}
	for x := range logits {
		at := len(experts)
		for at > 0 && (experts[at-1] < 0 || larger(logits[x], logits[experts[at-1]])) {
			at--
		}
		if at < len(experts) {
			copy(experts[at+1:], experts[at:])
			experts[at] = int32(x)
		}
	}
	m, sum := logits[experts[0]], float32(0)
	for _, v := range logits {
		sum += Exp(v - m)
	}
	chosen := float32(0)
	for i, x := range experts {
		weights[i] = Exp(logits[x]-m) / sum
		chosen += weights[i]
	}
	if normalise {
		for i := range weights {
			weights[i] /= chosen
		}
	}
}

// larger reports whether a > b, NaN counting as -Inf.
func larger(a, b float32) bool { return a > b || b != b && a == a && a > minusInf }
