# Draws, resizes, annotates and compares pictures with ImageMagick.
# has: convert identify compare
# apt: imagemagick fonts-dejavu-core

PATH=/usr/bin:$PATH
convert -size 64x48 gradient:red-blue -fill white -draw 'circle 32,24 32,10' -strip picture.png
convert picture.png -resize 50% -colorspace Gray -strip small.jpg
identify -format '%f %wx%h %m\n' picture.png small.jpg
convert picture.png -format '%[fx:mean.r > 0.2]\n' info:
compare -metric AE picture.png picture.png null:; echo
convert -list font | grep -c 'Font: DejaVu' | grep -v '^0$'
convert -font DejaVu-Sans -pointsize 20 label:text -strip label.png; identify -format '%wx%h\n' label.png
convert nothing.png x.png 2>&1 | cut -c1-60
