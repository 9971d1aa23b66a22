# Makes a film with sound from test pictures with ffmpeg, and reads its streams.
# has: ffmpeg ffprobe
# apt: ffmpeg

ffmpeg -v error -nostdin -threads 2 -f lavfi -i testsrc=duration=1:size=64x48:rate=10 -f lavfi -i sine=duration=1 -c:v mpeg4 -c:a aac -flags +bitexact -fflags +bitexact film.mp4
ffprobe -v error -show_entries stream=codec_name,width,height,nb_frames -of csv film.mp4
ffmpeg -v error -nostdin -i film.mp4 -vf scale=32:24 -frames:v 3 frame%d.png
ls; rm film.mp4 frame*.png
