"""Chat prompts for the benchmarks: eleven kinds of request, four of each, two of the four held out."""

from dataclasses import dataclass
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Prompt:
    """One conversation to answer; its last message is a user's."""

    kind: str
    messages: list[dict[str, str]]  # roles system/user/assistant
    held_out: bool  # not looked at while tuning


def _ask(kind: str, text: str, *, held_out: bool = False, system: str | None = None) -> Prompt:
    """A prompt of one user message, after a system message if one is given."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": text})
    return Prompt(kind, messages, held_out)


def _chat(*turns: str, held_out: bool = False, system: str | None = None) -> Prompt:
    """A conversation whose turns alternate, the user's first and last."""
    messages = [{"role": "system", "content": system}] if system is not None else []
    for index, turn in enumerate(turns):
        messages.append({"role": "assistant" if index % 2 else "user", "content": _flow(turn)})
    return Prompt("chat", messages, held_out)


def _flow(text: str) -> str:
    """Source lines joined into paragraphs; a blank line starts a new paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def _block(text: str) -> str:
    """Source lines kept as lines, without the common indent."""
    return dedent(text).strip()


PYTHON_CODE = _block("""
    import csv


    def load_readings(path):
        readings = []
        with open(path, newline="") as handle:
            for row in csv.DictReader(handle):
                readings.append((row["room"], float(row["celsius"])))
        return readings


    def average_by_room(readings):
        totals = {}
        counts = {}
        for room, celsius in readings:
            totals[room] = totals.get(room, 0.0) + celsius
            counts[room] = counts.get(room, 0) + 1
        return {room: totals[room] / counts[room] for room in totals}


    if __name__ == "__main__":
        averages = average_by_room(load_readings("readings.csv"))
        for room, value in sorted(averages.items()):
            print(f"{room}: {value:.1f}")
""")

JAVASCRIPT_CODE = _block("""
    class ShoppingList {
      constructor() {
        this.items = [];
      }

      add(name, quantity) {
        this.items.push({ name: name, quantity: quantity, bought: false });
      }

      markBought(name) {
        for (const item of this.items) {
          if (item.name === name) {
            item.bought = true;
          }
        }
      }

      remaining() {
        return this.items.filter((item) => !item.bought);
      }

      print() {
        for (const item of this.items) {
          const box = item.bought ? "[x]" : "[ ]";
          console.log(box + " " + item.quantity + " x " + item.name);
        }
      }
    }
""")

HTML_CODE = _block("""
    <!DOCTYPE html>
    <html lang="en">
    <head>
      <meta charset="utf-8">
      <title>Allotment Open Day</title>
      <style>
        body { font-family: sans-serif; margin: 2rem; }
        h1 { color: darkgreen; }
        table { border-collapse: collapse; }
        td, th { border: 1px solid gray; padding: 0.5rem; }
      </style>
    </head>
    <body>
      <h1>Allotment Open Day</h1>
      <p>Come and see what we grow. Everyone is welcome.</p>
      <table>
        <tr><th>Time</th><th>Activity</th></tr>
        <tr><td>10:00</td><td>Seed swap</td></tr>
        <tr><td>11:30</td><td>Compost talk</td></tr>
        <tr><td>13:00</td><td>Shared lunch</td></tr>
      </table>
    </body>
    </html>
""")

JAVA_CODE = _block("""
    import java.util.ArrayList;
    import java.util.List;

    public class ParkingGarage {
        private final int capacity;
        private final List<String> plates = new ArrayList<>();

        public ParkingGarage(int capacity) {
            this.capacity = capacity;
        }

        public boolean enter(String plate) {
            if (plates.size() >= capacity) {
                return false;
            }
            plates.add(plate);
            return true;
        }

        public boolean leave(String plate) {
            return plates.remove(plate);
        }

        public int freeSpaces() {
            return capacity - plates.size();
        }
    }
""")

MARKET_PASSAGE = _flow("""
    For almost thirty years the Saturday market in Wendlow stood in the square beside the old corn hall. Last spring
    the council closed the square to repair the drains underneath it, and the forty-two stalls were moved to a car
    park behind the railway station. Most traders expected the change to ruin them. Instead, the number of visitors
    rose by about a third within two months. People who used to drive to the supermarket on the edge of town found
    that they could step off the train, buy bread, cheese and vegetables, and be home before lunch.

    Not everyone is pleased. The cafes around the square say that their Saturday takings have fallen by half, and two
    of them now close at weekends. Older residents complain that the walk to the station is uphill and that there are
    no benches on the way. The car park also floods at one corner after heavy rain, so the fish stall has had to move
    three times.

    The drains will be finished in September, and the council must decide whether to bring the market home. A survey
    of nine hundred residents was almost evenly split. One suggestion, backed by the traders' association, is to hold
    the market in the square in the summer and at the station in the winter. The council will vote on the idea at its
    next meeting.
""")

SLEEP_PASSAGE = _flow("""
    When the secondary school in Harrow Vale moved its first lesson from half past eight to a quarter to ten, the idea
    was to let teenagers sleep longer. The head teacher had noticed that the first class of the day was the quietest,
    and not in a good way: pupils stared at their desks, and marks in that hour were the lowest in the timetable. The
    trial ran for one school year and involved about six hundred pupils aged between thirteen and eighteen.

    Pupils filled in a short diary each week. On average they slept forty minutes more on school nights than they had
    the year before. Late arrivals fell by more than half, and the school nurse recorded fewer visits for headaches.
    Marks improved slightly in mathematics and languages but did not change in the sciences. Teachers said the mood in
    the corridors was calmer.

    There were costs as well. The day now finished at half past four, which left sports clubs with little daylight in
    the winter. Some parents who started work early had to find someone to look after younger brothers and sisters,
    who travelled on the same bus. A few pupils admitted that they simply went to bed later. After a long discussion
    the governors kept the later start but shortened the lunch break, so that everyone could leave by four o'clock.
""")

LIBRARY_PASSAGE = _flow("""
    Three years ago a retired carpenter called Oskar Lind began lending out his tools from a shed at the end of his
    garden. He owned more drills, saws and clamps than he could ever use, and he was tired of seeing his neighbours
    buy cheap equipment that broke after a single weekend. He wrote the name of each borrower in a school notebook and
    asked only that things came back clean.

    Within a year the shed was too small. A local church offered its unused basement, and volunteers built shelves
    from old floorboards. The tool library now holds around eleven hundred objects, from wallpaper tables and ladders
    to a cement mixer and a machine for pressing apples. Members pay a small yearly fee and may keep up to five things
    for a week. On Thursday evenings a group meets to mend whatever has come back broken, and beginners are welcome to
    watch and learn.

    The hardest problem has been insurance, because few companies were willing to cover the loan of chainsaws. In the
    end the members agreed to lend the most dangerous machines only to people who had taken a half-day course. The
    library has also had to refuse gifts, since people often bring things that no longer work. Lind, who is now
    seventy-four, still comes in most days, mainly to sharpen chisels and to drink coffee.
""")

RIVER_PASSAGE = _flow("""
    The river Tarn Brook once ran in a straight concrete channel through the middle of Ashby Mills. Engineers built
    the channel after a flood many decades ago, and for a long time it did its job. Water passed through the town
    quickly and nobody thought much about it. But the channel was bad for wildlife, it smelled in the summer, and it
    pushed the floods downstream to villages that had never had them before.

    Five years ago the town began to take the concrete out. Diggers cut a new winding bed through the sports fields,
    with gravel in the shallow parts and deep pools on the bends. Two low meadows were left open so that they can fill
    with water after a storm and drain slowly over the next few days. Schoolchildren planted three thousand willow and
    alder cuttings along the banks.

    The results came sooner than expected. Trout were seen in the second year and kingfishers in the third. In the
    heavy rain of last November the meadows filled to the brim, but no houses were flooded, either in the town or
    further down. The football club lost one of its pitches, and some residents dislike the mud and the midges. Still,
    on warm evenings the new path beside the water is one of the busiest places in town.
""")

BOOKING_RECORDS = _block("""
    Booking 1: Helena Marsh phoned on 3 March and reserved the large hall for a wedding reception on 14 June.
    She expects 120 guests and paid a deposit of 200 pounds. Her number is 555-0142.
    Booking 2: On 5 March, Tomas Okafor asked for the music room every Tuesday from 1 April to 24 June
    for a choir of 18 people. He has not paid a deposit yet. His number is 555-0177.
    Booking 3: Priya Nand came to the office on 9 March to book the kitchen for a cooking class on 2 May.
    There will be 10 people, and she paid the full price of 65 pounds in cash. No phone number was left.
    Booking 4: Walter Brandt sent a letter that arrived on 11 March. He wants the small hall on 30 May
    for his father's eightieth birthday, with about 45 guests, and he enclosed a deposit of 50 pounds.
    His number is 555-0119.
""")

EXPEDITION_PASSAGE = _flow("""
    The walking club set off from Lower Farnley on 12 May with nine members, led by Judith Kellow. On the first day they
    covered fourteen miles and slept at a farm near Stone Cross, where the farmer, Alan Pring, gave them eggs for
    breakfast. On 13 May they climbed Gallow Hill in thick fog, and Beatrice Holm twisted her ankle on the way down. Her
    brother Karl took her home by bus from the village of Upper Mere that afternoon. The seven who were left reached the
    youth hostel at Dunwater at nine in the evening. They rested there on 14 May, apart from Simon Achebe, who walked to
    the chapel at Saint Orrin and back to take photographs. On 15 May the group followed the canal for eleven miles to
    Bramford, where Nadia Petrov, the club's treasurer, met them with a minibus and a large fruit cake.
""")

STAFF_RECORDS = _block("""
    Rosa Delgado is the head baker. She joined on 2 February 2015, works Tuesday to Saturday, starts at four in the
    morning, and earns 19.50 an hour. Her emergency contact is her sister Ines.
    Ben Whitlock serves at the counter. He joined on 17 August 2021, works Monday to Friday, starts at seven,
    and earns 12.80 an hour. His emergency contact is his mother, Carol.
    Mei Tan decorates the cakes. She joined on 9 November 2018, works Wednesday to Sunday, starts at six,
    and earns 16.25 an hour. Her emergency contact is her husband, Jun.
    Patrick Doyle drives the delivery van. He joined on 30 May 2019, works Monday to Saturday, starts at five,
    and earns 14.10 an hour. His emergency contact is his neighbour, Mr Farrow.
    Amina Yusuf keeps the accounts. She joined on 6 January 2020, works only on Mondays and Thursdays,
    starts at nine, and earns 21.00 an hour. Her emergency contact is her son Idris.
""")

AUCTION_PASSAGE = _flow("""
    Thirty lots were offered at the village hall on Saturday 18 October, and the auctioneer, Mrs Lorna Peake, opened the
    sale at ten o'clock sharp. The first lot, an oak writing desk from about 1890, went to Dr Samuel Frost for 340
    pounds. A set of six blue dinner plates was sold to Grace Adeyemi for 55 pounds after a long contest with a bidder
    on the telephone. The brass ship's clock, which had been expected to make 100 pounds, reached 410 and was bought by
    Victor Lindqvist, who said that it would hang in his hallway. A painting of two cows by an unknown artist found no
    buyer at all. The garden bench went for 75 pounds to the Hillside School, represented by its caretaker, Ron Tully.
    Last of all, a box of old maps was sold to Eleanor Voss for 28 pounds. The money will be used to mend the roof of
    the hall, and the work is due to begin on 3 November.
""")

BEES_PASSAGE = _flow("""
    Honeybees survive the winter by staying together in a tight ball called a cluster. The bees on the outside pack
    themselves closely with their heads pointing inwards, and they form a layer that keeps the heat from escaping. The
    bees in the middle shiver their flight muscles without moving their wings, which warms the centre of the ball. The
    insects change places from time to time, so that none of them stays in the cold for too long. The fuel for all this
    work is honey, and a colony may eat fifteen kilograms or more between autumn and spring. For this reason a careful
    beekeeper leaves enough honey in the hive when taking the harvest. The queen stops laying eggs in late autumn and
    starts again when the days grow longer. Damp is often a greater danger than cold, because water that drips from the
    lid can chill the cluster. Many beekeepers therefore raise the lid slightly so that moist air can leave. On mild
    winter days the bees fly out for a few minutes to empty their bowels, since they avoid soiling the hive.
""")

LIGHTHOUSE_PASSAGE = _flow("""
    The lighthouse on Corrie Point was lit for the first time on a stormy evening in October, after four years of
    building. Its granite blocks were cut on the mainland and carried across the bay in flat boats, which could land
    only at low tide. Two of the boats were lost, but all of the men were saved. The tower is thirty-one metres high and
    has a hundred and fifty-eight steps. At first the lamp burned oil, and a keeper had to wind the clockwork that
    turned the lens every three hours. Three keepers lived in the tower at a time, and each of them served for six weeks
    before he went home for two. They grew potatoes in a walled patch behind the tower, where the soil had been brought
    over in sacks. Electricity reached the island through a cable under the sea, and the clockwork was stopped soon
    afterwards. The last keeper left when the light was made automatic. Today an engineer visits twice a year, and the
    keepers' rooms are let to visitors who don't mind the foghorn.
""")

BREAD_PASSAGE = _flow("""
    Sourdough bread rises without any yeast from a packet. The baker keeps a starter, which is a mixture of flour and
    water in which wild yeasts and bacteria live. The yeasts give off gas that makes the dough rise, while the bacteria
    make acids that give the loaf its sour taste. A starter must be fed with fresh flour and water, daily if it stands
    in a warm kitchen and about once a week if it is kept in the fridge. A grey liquid on the top means that it is
    hungry, but it is not spoiled, and the liquid can be stirred back in. Pink or orange streaks are a sign that it
    should be thrown away. Because wild yeasts work slowly, the dough needs many hours to rise, and a cold night in the
    fridge improves the flavour. The acids also slow the growth of mould, so the bread keeps longer than an ordinary
    loaf. A very hot oven and some steam in the first fifteen minutes give a thin, crackling crust. The loaf should cool
    for at least an hour before it is cut, or the inside will be gummy.
""")

TRAM_PASSAGE = _flow("""
    The number nine tram in Velmer runs from the harbour to the university hospital, a distance of seven kilometres.
    Until last year it stopped at midnight, and nurses who finished late had to pay for a taxi or wait for the first
    tram at five. A group of hospital workers collected four thousand signatures and asked the city to extend the
    service. The city agreed to a trial, with one tram an hour through the night from Thursday to Sunday. During the
    first three months an average of thirty-eight people travelled on each night tram, which was twice as many as had
    been forecast. Most of them were hospital staff, but students and restaurant workers used it too. Residents of Mill
    Street complained about the noise of the wheels on the sharp bend, so the track there is now sprayed with water each
    evening. The night service costs the city about nine thousand a month more than it earns in fares. The transport
    committee has promised to keep it running until the end of next year and then to review the numbers.
""")

LETTER_PARAGRAPH = _flow("""
    Dear neighbours, next Saturday we are going to repaint the fence between our gardens. We will start at nine in the
    morning and hope to finish before dinner. Please keep your dog inside during the day, because the paint takes
    several hours to dry. If it rains, we will wait until the following weekend. We have bought enough green paint for
    both sides, so you do not have to pay for anything. Afterwards you are welcome to join us for cake and lemonade
    under the apple tree.
""")

TRAVEL_PARAGRAPH = _flow("""
    The train left the city early in the morning, while the streets were still dark. My grandmother had packed a basket
    with bread, cheese and two oranges. Through the window we saw fields covered with frost and small villages with
    smoke above the roofs. After three hours the mountains appeared, white and very high. My little brother asked
    whether bears lived there. An old man opposite us laughed and told him that the bears were asleep, and that they
    would only wake up in the spring.
""")

CLINIC_PARAGRAPH = _flow("""
    Thank you for making an appointment at our dental clinic. Please arrive ten minutes early so that you can fill in a
    short form. Bring your insurance card and a list of any medicines that you take. If you are afraid of the treatment,
    tell us when you come in, and we will take more time. You can park for free behind the building. If you cannot come,
    please call us at least one day before, so that we can give your place to somebody else.
""")

KITCHEN_PARAGRAPH = _flow("""
    My uncle opened his restaurant in a former garage, because the rent was low and the room was big. He painted the
    walls yellow and built the tables himself. In the first winter almost nobody came, and he often cooked only for his
    friends. Then a teacher from the school next door tasted his mushroom soup and told all her colleagues about it. Now
    you have to reserve a table two weeks before. My uncle still makes the soup every morning, and he never writes down
    the recipe.
""")

PROMPTS: list[Prompt] = [
    # explain
    _ask("explain", "Why does bread go stale faster in the fridge than on the counter? I always thought cold kept it."),
    _ask(
        "explain",
        "How does a vaccine teach the body to fight a disease it has never met?",
        system="You are a patient science teacher who explains things in plain words.",
    ),
    _ask("explain", "Can you explain what inflation is and why prices almost never go back down?", held_out=True),
    _ask(
        "explain",
        "what causes the tides, and why are there two high tides a day and not just one?",
        held_out=True,
    ),
    # code
    _ask(
        "code",
        "Write a Python class for a bank account with deposit, withdraw and transfer methods. It should refuse to go "
        "below zero and keep a history of every transaction. Add docstrings and a short example.",
    ),
    _ask(
        "code",
        "I have tables customers(id, name, city) and orders(id, customer_id, order_date, total). Write SQL to create "
        "both tables, insert a few sample rows, and list the three customers who spent the most in each city.",
    ),
    _ask(
        "code",
        "Please write a bash script that goes through a folder of photos, renames each one to its modification date, "
        "and moves it into a subfolder for its year. Print what it does, and don't overwrite existing files.",
        held_out=True,
        system="You are a careful programmer who comments code well.",
    ),
    _ask(
        "code",
        "Make a single HTML page with a sign-up form: name, email, age, favourite sport as a dropdown, and a checkbox "
        "for the newsletter. Add some CSS, and JavaScript that checks the fields before the form is sent.",
        held_out=True,
    ),
    # edit code
    _ask(
        "edit code",
        "Change this so that readings below -40 or above 60 degrees are skipped when the file is loaded, and tell me "
        f"how many were skipped. Give me the whole file back.\n\n```python\n{PYTHON_CODE}\n```",
    ),
    _ask(
        "edit code",
        f"Here is my class:\n\n```javascript\n{JAVASCRIPT_CODE}\n```\n\n"
        "Please add a remove(name) method that deletes an item from the list, and return the complete class.",
    ),
    _ask(
        "edit code",
        f"```html\n{HTML_CODE}\n```\n\n"
        "Add a third column called Place to the table (Greenhouse, Shed and Main Lawn) and make the header row light "
        "green. Keep everything else the same and show the full page.",
        held_out=True,
    ),
    _ask(
        "edit code",
        "Can you rename the field plates to parkedCars everywhere, and make enter return false when the same car is "
        f"already inside? I need the entire class, not just the changed lines.\n\n```java\n{JAVA_CODE}\n```",
        held_out=True,
        system="You are a helpful assistant that edits code exactly as asked.",
    ),
    # summarise
    _ask("summarise", f"Summarise this article in one paragraph:\n\n{MARKET_PASSAGE}"),
    _ask(
        "summarise",
        f"{SLEEP_PASSAGE}\n\nGive me the main points of the text above as five or six bullet points.",
        system="You write short, accurate summaries.",
    ),
    _ask(
        "summarise",
        "Could you summarise the following for our newsletter? About 80 words would be good, and mention both the "
        f"good and the difficult parts.\n\n{LIBRARY_PASSAGE}",
        held_out=True,
    ),
    _ask(
        "summarise",
        f"{RIVER_PASSAGE}\n\nSummarise each paragraph in one or two sentences, then say in one sentence what the whole "
        "text is about.",
        held_out=True,
    ),
    # extract
    _ask(
        "extract",
        "Turn these bookings into a JSON list. Each entry should have name, room, event_date, guests, paid and phone; "
        f"use null where something is missing.\n\n{BOOKING_RECORDS}",
    ),
    _ask(
        "extract",
        f"{EXPEDITION_PASSAGE}\n\nList every person in this text with what they did, and then list every date with "
        "the place where the group spent it.",
    ),
    _ask(
        "extract",
        f"From the notes below, extract the name, job, start date, working days and hourly pay of each person as JSON."
        f"\n\n{STAFF_RECORDS}",
        held_out=True,
        system="You extract data from text and answer only with the data.",
    ),
    _ask(
        "extract",
        "Read this report and make a list of everything that was offered, one per line, in the form: "
        f"item - buyer - price. Then list all the dates.\n\n{AUCTION_PASSAGE}",
        held_out=True,
    ),
    # answer from a passage
    _ask(
        "answer from a passage",
        f"{BEES_PASSAGE}\n\nHow do bees keep warm in winter, and what can a beekeeper do to help them? Answer by "
        "quoting the sentences from the text that say so.",
    ),
    _ask(
        "answer from a passage",
        "Use only the text below. What was daily life like for the keepers? Quote the relevant sentences word for word."
        f"\n\n{LIGHTHOUSE_PASSAGE}",
        system="You answer questions using only the text you are given.",
    ),
    _ask(
        "answer from a passage",
        f"Text:\n{BREAD_PASSAGE}\n\nQuestion: How can I tell whether my starter is still good, and how often should I "
        "feed it? Please quote the sentences that answer this and add a short explanation after each.",
        held_out=True,
    ),
    _ask(
        "answer from a passage",
        f"{TRAM_PASSAGE}\n\nWho asked for the night tram and why, and what problems did it cause? Copy out the "
        "sentences in the passage that give the answer.",
        held_out=True,
    ),
    # translate
    _ask("translate", f"Translate this into French:\n\n{LETTER_PARAGRAPH}"),
    _ask("translate", f"{TRAVEL_PARAGRAPH}\n\nPlease translate the paragraph above into Spanish."),
    _ask(
        "translate",
        f"Translate the following message to patients into German, in a polite tone.\n\n{CLINIC_PARAGRAPH}",
        held_out=True,
        system="You are a professional translator.",
    ),
    _ask(
        "translate",
        f"how would you say this in Italian? translate all of it please\n\n{KITCHEN_PARAGRAPH}",
        held_out=True,
    ),
    # list
    _ask(
        "list",
        "Give me a list of 12 vegetables that are easy to grow in pots on a balcony, with one sentence about each.",
    ),
    _ask(
        "list",
        "I'm moving into my first flat. What are 15 things I should have in the kitchen, and what is each one for?",
    ),
    _ask(
        "list",
        "List 10 games that children can play outside without any equipment. Describe the rules of each one briefly.",
        held_out=True,
    ),
    _ask(
        "list",
        "Suggest 12 ways to save electricity at home, numbered, each with a short description of how it helps.",
        held_out=True,
        system="You give practical, friendly advice.",
    ),
    # story
    _ask(
        "story",
        "Write a story about Mina, a girl who repairs clocks, and Mr Pemberton, a tortoise who is always late. They "
        "have to deliver a clock to the mayor before noon.",
    ),
    _ask(
        "story",
        "Tell me a bedtime story with three characters: a shy dragon called Ember, a baker called Otto, and a goose "
        "who thinks she is a knight. It should end happily.",
    ),
    _ask(
        "story",
        "Write a short mystery. Inspector Dolores Quill and her nephew Ravi are on a night ferry when the captain's "
        "silver whistle goes missing. The suspects are a violinist, a cook and a retired diver.",
        held_out=True,
    ),
    _ask(
        "story",
        "I'd like a story about two old friends, Leon and Agathe, who meet again at a bus stop after forty years. Use "
        "plenty of dialogue.",
        held_out=True,
        system="You are a writer of warm, gentle stories.",
    ),
    # maths
    _ask(
        "maths",
        "A farmer sells 45 boxes of apples at 12 dollars each and 30 boxes of pears at 15 dollars each. Picking cost "
        "280 dollars and the stall cost 65 dollars. How much profit did the farmer make? Show your work step by step.",
    ),
    _ask(
        "maths",
        "A rectangular garden is 18 m long and 12 m wide. A path 1.5 m wide runs all the way around the outside. What "
        "is the area of the path, and how many paving stones of 0.5 m by 0.5 m cover it? Explain each step.",
    ),
    _ask(
        "maths",
        "Two cyclists start at the same time from towns 84 km apart and ride towards each other, one at 16 km/h and "
        "the other at 12 km/h. When do they meet, and how far has each of them ridden? Go through it step by step.",
        held_out=True,
        system="You are a maths tutor who shows every step.",
    ),
    _ask(
        "maths",
        "Sara puts 2,000 into a savings account that pays 5% a year, and adds 500 at the end of each year after the "
        "interest is paid. How much does she have after 3 years? Work it out step by step.",
        held_out=True,
    ),
    # chat
    _chat(
        "Hi! I want to start running but I've never done any sport. Where do I begin?",
        """
        Good for you! The easiest way to begin is to mix walking and running. Go out three times a week, walk for five
        minutes to warm up, and then run slowly for one minute and walk for two minutes. Repeat that six times. Leave a
        day of rest between the sessions so that your legs can recover, and make sure your shoes fit well.
        """,
        "Ok, I did that for two weeks and it feels good, but my shins hurt a bit afterwards.",
        """
        Sore shins are very common in new runners, and they usually mean that the load has grown a little too quickly.
        Rest for a few days, put something cold on your shins after exercise, and stretch your calves gently. When you
        start again, choose grass or a soft path instead of the pavement, and take shorter steps. If the pain is sharp
        or does not go away after two weeks, see a doctor.
        """,
        "Thanks. Can you make me a plan for the next four weeks that is gentle on my shins?",
    ),
    _chat(
        "I'm planning a surprise party for my mum's 60th. Any ideas for a theme?",
        """
        How lovely! A few ideas: a garden tea party with flowers and old china, an evening with music from the years
        when she was young, or a journey through her life with photographs from each decade on the walls. If she loves
        to travel, you could decorate every table as a different country. What does she enjoy most, and how many guests
        do you expect?
        """,
        "She loves gardening, so the tea party! About 25 people, in our back garden in May.",
        """
        Perfect, a garden tea party in May will suit her well. Set out small tables with pots of herbs that the guests
        can take home. Serve sandwiches, scones and a big lemon cake. You'll need chairs for 25, two or three large
        teapots, and a plan in case it rains, such as a tent or a tidy living room. Ask a friend to take her out for the
        morning while you prepare.
        """,
        "My aunt can take her shopping until 2. But I only have about 300 to spend.",
        """
        That is enough if you share the work. Spend about 120 on food and bake the scones yourself, 40 on drinks, 50 on
        flowers and herbs, and 30 on decorations. Borrow chairs, tablecloths and teapots from the family or from a
        community hall. Keep 60 in reserve for a cheap tent or a small gift. Guests are often happy to bring a dish, so
        do ask them.
        """,
        "Great. Now write me a timetable for the whole day, from the morning until everyone has gone home.",
    ),
    _chat(
        "my cat keeps waking me up at 5am. what can i do?",
        """
        Cats are naturally active at dawn, so you are not alone. Most of them wake their owners because they are hungry
        or bored. Try to play with her for fifteen minutes before you go to bed and then give her the main meal of the
        day. When she wakes you, don't get up, talk to her or feed her, because any attention is a reward. It can take a
        week or two before she stops.
        """,
        "I tried ignoring her but she scratches the bedroom door and cries. My neighbours hear it.",
        """
        That is hard, especially with thin walls. You could buy an automatic feeder and set it for a quarter to five, so
        that she learns to wait for the machine rather than for you. Put a mat of rough plastic in front of the door,
        since cats dislike walking on it. A few toys and a place at a window will also keep her busy. It may get worse
        for a few nights before it gets better.
        """,
        "How exactly should I use the feeder? Like what times, how much food, and how do I move breakfast to 7?",
        held_out=True,
        system="You are a friendly adviser for pet owners.",
    ),
    _chat(
        "Can you help me get ready for a job interview? It's at a small hotel, for the front desk.",
        """
        Of course. At the front desk a hotel looks for somebody who is calm, friendly and well organised. Expect
        questions about how you deal with difficult guests, how you handle several tasks at once, and why you want to
        work there. Look at the hotel's website beforehand, and think of two or three examples from your own life. Do
        you have any experience of working with customers?
        """,
        "I worked in a shoe shop for two years and I speak some German.",
        """
        Both are useful. In the shoe shop you listened to people, solved problems and handled money, and all of that
        happens at a front desk too. Prepare one story about a customer who was unhappy and how you helped. Mention your
        German early on, and be honest about how well you speak it. Many guests feel welcome when they hear even a few
        words in their own language.
        """,
        "Once a man came back with boots he'd worn for a month and shouted at me because they leaked.",
        """
        That's a very good example. Tell it in four short parts: what happened, what your task was, what you did, and
        how it ended. Say that you let him finish, apologised for the trouble, checked the boots, and offered him a
        choice. Don't complain about him, even if he was rude. The interviewer wants to hear that you stayed polite and
        found a solution.
        """,
        "In the end I gave him a repair voucher and he came back later to say thank you.",
        """
        What a good ending! It shows that you turned an angry customer into a loyal one. Finish your story with that
        sentence and then add what you learned from it, for example that people calm down once they feel heard. Keep the
        whole answer under two minutes. Practise it aloud a few times, but don't learn it by heart, or it will sound
        stiff.
        """,
        "Could you write out the full answer the way I'd say it in the interview, and give me three more questions "
        "they might ask, with good answers?",
        held_out=True,
    ),
]
