build:
	go build -buildvcs=true -trimpath -o bin/tandem ./daemon
