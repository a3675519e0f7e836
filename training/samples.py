"""Makes the calibration contexts and the development set of the builtin model
with the generator of train.py, without PyTorch:

    python3 samples.py calibration > ../model/builtin/calibration.jsonl
    python3 samples.py development > development.jsonl

Seeds differ from those of training and of eval_samples.jsonl.
"""
import json, os, random, sys, types

# train.py imports PyTorch at the top; the generator needs none of it.
class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return Anything(name)
    def __call__(self, *a, **k):
        return Anything('call')
    def __mro_entries__(self, bases):
        return (object,)

for name in ('torch', 'torch.nn', 'torch.nn.functional', 'torch.multiprocessing'):
    sys.modules[name] = Anything(name)
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import train

tok = train.Tok.load(os.path.join(HERE, '..', 'tokenizer.json'))
TASKS = ['niah_single_1', 'niah_single_2', 'niah_single_3', 'niah_multikey_1', 'niah_multikey_2', 'niah_multikey_3',
         'niah_multivalue', 'niah_multiquery', 'vt', 'cwe', 'fwe', 'qa_1', 'qa_2']


def question(q):
    return {'question': q.q, 'answer_prefix': q.pre, 'answers': list(q.ans)}


def calibration():
    """Contexts of mixed facts, as long as the model can read, with questions about different parts of them."""
    for i in range(8):
        r = random.Random('calibration %d' % i)
        while True:
            context, qs = train.make_mixed(r, 1900, tok.n)
            if 1700 <= tok.n(context) <= 1950 and len(qs) >= 10:
                break
        yield {'context': context, 'questions': [question(q) for q in qs[:10]]}


def development():
    for length in (512, 1024, 2048):
        for task in TASKS:
            for i in range(5):
                r = random.Random('development %s %d %d' % (task, length, i))
                context, q = train.sample(r, task, length, tok)
                yield {'task': task, 'length': length, 'context': context, **question(q), 'answer_text': train.join(q.ans) + q.tail}


for line in {'calibration': calibration, 'development': development}[sys.argv[1]]():
    print(json.dumps(line))
