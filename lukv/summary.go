package lukv

// summarizer is a metric or an allocator that says in one sentence, without a full stop, what
// it ranks an entry by or how it divides the budget.
type summarizer interface{ Summary() string }

// MetricSummary explains the metric of a name in a sentence; empty if the name is unknown
// or its type has no Summary method.
func MetricSummary(name string) string { return metrics.summary(name) }

// AllocatorSummary explains the allocator of a name in a sentence; empty if the name is
// unknown or its type has no Summary method.
func AllocatorSummary(name string) string { return allocators.summary(name) }

func (snapKV) Summary() string {
	return "Keeps what the last 32 tokens of the text attend to; for documents that end with the question"
}

func (keyDiff) Summary() string {
	return "Keeps keys that point away from the head's mean key; cheap, for questions that come later"
}

func (keyDistance) Summary() string {
	return "Keeps unrotated keys far from the head's mean key; the first choice for questions that come later"
}

func (expectedAttention) Summary() string {
	return "Keeps what queries distributed like those of the text are expected to attend to"
}

func (kvZip) Summary() string {
	return "Keeps what a repetition of the text attends to; loses least, and costs about two more prefills"
}

func (streamingLLM) Summary() string {
	return "Keeps the first and the newest tokens; a floor to compare with"
}

func (kNorm) Summary() string {
	return "Keeps the shortest keys; a baseline"
}

func (tova) Summary() string {
	return "Keeps what the newest token attends to; made for decoding"
}

func (observed) Summary() string {
	return "Keeps what has received most attention on average; costs a second pass of attention"
}

func (h2o) Summary() string {
	return "Keeps what has received most attention in total; costs a second pass of attention"
}

func (cake) Summary() string {
	return "Keeps what the last tokens attend to, strongly or with changing strength"
}

func (defensiveKV) Summary() string {
	return "Keeps what any of the last tokens may need, weighted by its effect on the output"
}

func (criticalKV) Summary() string {
	return "Refines another metric by the effect of each entry on the output"
}

func (lagKV) Summary() string {
	return "Keeps keys and values that vary most in the range of those that follow"
}

func (leverage) Summary() string {
	return "Keeps keys that the others of the head cannot replace; cheap, for questions that come later"
}

func (compactor) Summary() string {
	return "Keeps irreplaceable keys and what their surroundings attend to, for questions that come later"
}

func (curKV) Summary() string {
	return "Keeps keys and values that are long among their neighbours; nearly free"
}

func (chunkKV) Summary() string {
	return "Keeps whole phrases instead of single tokens, ranked by another metric"
}

func (triAttention) Summary() string {
	return "Keeps what the mean query will attend to at distances to come; made for long answers"
}

func (learned) Summary() string {
	return "Keeps what a function fitted by lukv profile predicts KVzip to keep; cheap, for questions that come later"
}

func (perHead) Summary() string {
	return "Ranks each head by the metric that a profile found best for it"
}

func (uniform) Summary() string {
	return "Gives every head the same budget"
}

func (pyramid) Summary() string {
	return "Gives lower layers more than higher ones"
}

func (ada) Summary() string {
	return "Lets the heads of a layer compete, with a share that each is sure of"
}

func (global) Summary() string {
	return "Keeps the best scores of the whole model, whatever head they are of"
}

func (lu) Summary() string {
	return "Gives each head what its measured usefulness deserves; needs a profile"
}

func (cakeLayers) Summary() string {
	return "Gives more to layers whose attention is spread and shifting"
}

func (headKV) Summary() string {
	return "Gives more to heads that lukv probe found important"
}

func (duo) Summary() string {
	return "Keeps everything in the most important heads, and a few tokens in the others"
}

func (scoreThreshold) Summary() string {
	return "Keeps what scores above a threshold, within the budget"
}
