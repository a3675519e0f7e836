// Golden data: a module of its own, so that users of the library do not download it.
module github.com/lukv/lukv/tokenizer/chat/testdata

go 1.26.0
