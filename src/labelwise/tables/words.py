"""The words by which a table is read: usual names of columns, and what cells may say.

All are compared without case; names of columns also without blanks and signs (``folded``).
"""

import re
import unicodedata


def folded(text: str) -> str:
    """Return the letters and digits of a text in lower case."""
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def name_parts(name: str) -> list[str]:
    """Return the words in a column's name.

    >>> name_parts("isReviewed"), name_parts("question__species"), name_parts("date palm")
    (['is', 'reviewed'], ['question', 'species'], ['date', 'palm'])
    """
    parts = re.split(r"[\W_]+|(?<=[a-z])(?=[A-Z])", name)
    return [folded(part) for part in parts if folded(part)]


def _listed(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.replace("\n", ",").split(",") if word.strip())


# Names of columns

MEANINGS = ("path", "image", "labels", "unknown", "split", "group", "soft", "shares")
PATH_HEADERS = ("path", "file_name", "filename", "file", "id")
USUAL_PATHS = _listed("""
    path, filename, file, id, filepath, image, imageid, imageindex, imagefile, imagefilename,
    imagelabel, imagename, imagepath, img, imgid, imgpath, uuid, photo, photoid, photopath, picture,
    sourcefile, photofile, photoname, imageurl, datei, dateiname, bild, bilddatei, foto, fichier,
    nomdufichier, archivo, imagen, arquivo, imagem, nomefile, immagine, plik, nazwapliku, zdjęcie,
    obraz, файл, имяфайла, изображение, фото, 파일, 파일명, 사진, 이미지, ファイル名, ファイル,
    写真, 画像, 文件名, 文件, 图片, 照片, αρχείο, soubor, obrázek, tiedosto, kuva, dosya, resim,
    fájl, kép, fișier, imagine, bestand, bestandsnaam, afbeelding, fil, filnamn, filnavn, bilde
""")
USUAL_LABELS = _listed("label, labels, tags, genre, genres, keywords, findinglabels")
LIKELY_LABELS = USUAL_LABELS | _listed("""
    finding, findings, class, classes, category, categories, species, diagnosis, labelname,
    labelnames, classname, classnames, tag, annotations, supercategory, subcategory, superclass,
    genus, genera, keyword, labelset, imagelabels, truth, groundtruth, target, targets, taxon, taxa,
    objects, content, contents, subjects, attributes, attribute, concepts, breed, cls, choice, dx,
    choices, disease, diseases, defect, defects, commonname, scientificname, speciesguess,
    art, arten, etikett, etiketten, klasse, klassen, schlagwort, schlagworte, schlagwörter,
    stichwort, stichwörter, kategorie, kategorien, objekt, objekte, motiv, motive, inhalt,
    beschriftung, etiquette, etiquettes, étiquette, étiquettes, espece, especes, espèce, espèces,
    catégorie, catégories, mots, motsclés, motscles, etiqueta, etiquetas, especie, especies,
    categoría, categorías, categoria, categorias, palabrasclave, rótulo, rótulos, espécie, classe,
    etichetta, etichette, specie, soort, soorten, etikett, etiketter, arter, etiket, etiketler,
    etykieta, etykiety, gatunek, gatunki, kategoria, tagi, štítek, štítky, címke, címkék, laji,
    etichetă, метка, метки, тег, теги, вид, виды, ετικέτα, ετικέτες, ラベル, タグ, 种, 種, 種名,
    标签, 標籤, 类别, 物种, 라벨, 태그, 레이블
""")
# What a column of this name never is: a label.
RECORDS = _listed("""
    id, patient, patientid, fold, split, istrain, istest, isval, reviewed, checked,
    verified, isreviewed, width, height, notes, note, comment, comments, remark, remarks, uuid, url,
    md5, sha256, timestamp, photographer, annotator, rater, reviewer, worker, latitude, longitude,
    lat, lon, lng, index, datetime, bemerkung, bemerkungen, notiz, notizen, kommentar, breite, höhe,
    hoehe, fotograf, geprüft, geprueft, datum, remarque, remarques, commentaire, largeur, hauteur,
    observaciones, comentario, comentarios, ancho, alto, fecha, fotografo, fotógrafo, filesize,
    imageid, photoid, objectid, annotationid, labelid, labelids, classid, categoryid, speciesid,
    taxonid, standort, kamera, gruppe, groupe, grupo, group, groups, site, sites, date, time, burst,
    sequence, deployment, observer, beobachter, observateur, gps, filename, thumbnail, isflagged,
    usage, subset, partition, isvalid, done, confidence, certainty, doy, predictionstring, bbox,
    boundingbox, xmin, ymin, xmax, ymax, regioncount, regionid, fileattributes, leadtime, createdat,
    updatedat, createdby, konfidenz, uwagi, data, дата, timezone, isblank,
    numberofobjects, nlabels, numlabels,
    labelcount, total, sum, summe, gesamt, anzahl, captureid, relativepath,
    folder, deleteflag, username, userlogin, approved, exported, excluded, included, accepted,
    rejected, confirmed, completed, complete, done, processed, uploaded, published, validated,
    usedfortraining, usable, vérifié, verifié, verifie, validé, revisado, verificado, validado,
    verificato, controllato, gecontroleerd, nagekeken, sprawdzone, проверено, kontrolliert,
    freigegeben, validiert, erledigt, granskad, kontrollert, onaylandı, 確認, 確認済, checkedby,
    haslabel, haslabels, reviewedby, labeledby, annotatedby, lastedit, birthdate, iso, aperture,
    fnumber, exposuretime, shutterspeed, focallength, framenum, framenumber, moonphase, mondphase,
    licence, license, assignmentstatus
""")
MAYBE_RECORDS = _listed("""
    camera, station, location, source, status, year, month, day, hour, age, sex, gender, batch,
    session, user, author, flag, quality, weather, set, ort, lieu, place, habitat, season, count,
    number, temperature, altitude, elevation, size, rating, stars, order, train, valid, score, row,
    no, nr, part, phase, use, test, val, caption, captions, text, description, title, beschreibung,
    titel, légende, descripción, box, any, flagged, duplicate, cluster, make, model, frame, seq,
    version, subject, plot, moon, mond, lens, orientation, exposure, institution, timeofday
""")
# Words that a record's name consists of, beside those above: ``patient_age``, ``observed_on``.
RECORD_WORDS = (
    RECORDS
    | MAYBE_RECORDS
    | _listed("""
    is, has, was, of, by, at, on, the, image, photo, file, name, object, annotation, label, class,
    category, species, taxon, number, ids, created, updated, observed, approx, prob, conf, type,
    login, grade, path, uri, hash, original, median, mean, min, max, total, num, n, code, version
""")
)
LONG_LABEL = {"label", "labelname", "class", "classname", "tag", "species", "category"}
LONG_VALUE = {
    "value",
    "present",
    "answer",
    "confidence",
    "presence",
    "verified",
    "istrue",
    "vote",
} | {
    "deleted",
    "removed",
    "valid",
    "correct",
    "approved",
    "accepted",
    "rejected",
    "iscorrect",
    "isvalid",
    "isdeleted",
    "active",
    "keep",
}
# Of these a single no is enough: the row denies its label.
ANSWERS = _listed("answer, vote, value, present, presence, antwort, réponse, respuesta, risposta")
LONG_VALUE |= ANSWERS
LONG_ACTION = {"action", "operation", "change"}
LONG_SHARE = {"confidence", "probability", "prob", "score", "conf", "certainty", "p"}
DENYING = {"not", "non", "no", "excluded", "removed", "rejected", "wrong", "absent", "without"}
UNSURE = {
    "uncertain",
    "unsure",
    "maybe",
    "possible",
    "probable",
    "doubtful",
    "unsicher",
    "fraglich",
}
SCENES = {"scene", "setting", "activity"}  # a column called so beside the labels may be some too
CORRECTED = {
    "corrected",
    "correction",
    "revised",
    "korrigiert",
    "korrektur",
    "override",
    "overwrite",
}
NO_OBJECTS = {"sex", "gender", "age", "batch", "session", "status", "quality", "score"} | {
    "any",
    "flagged",
    "duplicate",
    "haslabel",
    "haslabels",
    "has_label",
    "labeled",
}
SPLIT_NAMES = {"split", "set", "subset", "partition", "usage", "phase", "part", "fold", "dataset"}

# Cells of a label's own column

PRESENT = _listed("""
    1, true, yes, y, t, ja, j, wahr, oui, vrai, si, sí, sì, verdadero, waar, да, tak, ano, igen,
    kyllä, はい, 是, 有, ○, ◯, 〇, ◎, ●, vorhanden, présent, presente, evet, نعم, da,
    ✔️, seen, gesehen, sim, x, ✓, ✔, ☑, ☑️, ✅, 👍, 🟢, 🟩, present, positive, pos, +,
    accept, accepted,
    так, כן, ναι, có, ใช่, हाँ, detected, found, gefunden, erkannt, nachgewiesen, détecté, detectado,
    vero, on, •, prawda, истина, pravda, tosi, doğru, igaz, adevărat, あり, 예, 네, verdadeiro
""")
TICKS = _listed("x, ✓, ✔, ✔️, ☑, ☑️, ✅, +, •, *, ○, ◯, 〇, ●, 👍")  # beside which empty is absent
ABSENT = _listed("""
    0, false, no, n, f, nein, falsch, non, faux, falso, não, nao, onwaar, нет, nie, ne, nem, ei,
    いいえ, 否, 无, ×, ✕, ✖, ✖️, nicht vorhanden, ausente, hayır, لا, nej, nee,
    not seen, not present, abwesend, nicht gesehen, non présent, ❎, absente, ✗, ✘, ☐, ❌, 👎,
    reject, rejected,
    🔴, 🟥, absent, negative, neg, off, fałsz, ложь, nepravda, epätosi, yanlış, hamis, fals, nu,
    なし, 아니오, 아니요, ні, לא, όχι, không, ไม่, ไม่ใช่, नहीं, not detected, not found, fehlt,
    nicht gefunden, nicht erkannt, nicht nachgewiesen, non détecté, no detectado
""")
# Pairs whose words mean this only beside each other.
PAIRS = (
    *(("s", "n"), ("o", "n"), ("t", "n"), ("e", "h"), ("д", "н"), ("p", "a"), ("v", "f")),
    *(("有", "無"), ("p", "n"), ("pos.", "neg."), ("sand", "falsk"), ("sann", "usann")),
    *(("sant", "usant"), ("hai", "iie"), ("jah", "ei")),
)
MINUS_ONE = {"-1", "-1.0"}
DASHES = {"-", "–", "—", "--", "−", ".", "·"}
MISSING = ("", "nan", "null", "<na>", "na")  # as programs write that a cell has no value
NO_STATE = _listed("""
    ?, ??, na, n/a, n.a., #n/a, nan, null, unknown, unklar, unsure, k.a., unbekannt, tbd, todo,
    inconnu, desconocido, n.v., maybe, vielleicht, nie wiem, неизвестно, forse, quizás, peut-être,
    don't know, dont know, not sure, unsicher, weiß nicht, weiss nicht, no sé, no se, non so,
    não sei, je ne sais pas, ne sait pas, nsp, uncertain, unclear, incertain, incierto, incerto,
    onzeker, osäker, usikker, tal vez, talvez, misschien, kanske, #ref!, #value!, #div/0!, #name?,
    #num!, #nv, #wert!, #bezug!, indet., indeterminate
""")
STATES = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "": -1, "nan": -1}

# Words in a column of labels that seem to say "none of them" or "nobody knows"

NONE_WORDS = _listed("""
    -, --, –, n/a, none, no finding, no findings, 0, no label, no labels, nothing, nichts, keine,
    kein, leer, aucun, aucune, rien, vide, ninguno, ninguna, nada, nothing here, vacío, vacio,
    vacía, なし, 无, 無, nic, inget, empty, blank, nessuno, nenhum, [], {}, brak, żaden, нет, пусто,
    geen, ingen, inga, background, hintergrund,
    ikke, ei mitään, yok, nincs, niciuna, žádný, žádné, 없음, κανένα, niks,
    ничего, kosong, tidak ada, không, không có, لا شيء, כלום, कुछ नहीं, 0.0, nil,
    vuoto, vazio, leeg, tyhjä, puste, prázdné, üres, boş, κενό
""")
UNKNOWN_WORDS = _listed("""
    ?, ??, ???, tbd, todo, unknown, unlabeled, unlabelled, nan, null, na, n.a., #n/a, -1, unklar,
    unbekannt, k.a., k. a., inconnu, inconnue, desconocido, unsure, undefined, nil, #na, #value!,
    #ref!, missing, <na>, \\n, #nv, nv, n.v., s.o., s/o, not sure, 不明, 未知, неизвестно, onbekend,
    ukjent, okänd, unclear, n.b., nieznany, nieznane, neznámé, bilinmiyor, 알 수 없음, άγνωστο,
    desconhecido, sconosciuto, ismeretlen, necunoscut, tuntematon, pending, skip, skipped, n.d.,
    n. d., nd, unid, unid., unk, sp. indet., idk, dunno, maybe, vielleicht, peut-être, quizás,
    forse, to do, to be determined, ne sait pas, je ne sais pas, ei tiedossa, không rõ,
    tidak diketahui, dito, ditto, idem, see above, siehe oben, недоступно, 確認中, 要確認,
    check, error,
    अज्ञात, غير معروف, לא ידוע, 미상, 모름, わからない, 不清楚, 未標記, 未标注, 未分類, 未分类
""")
# Words that begin so, and phrases: "no animal", "nicht bestimmbar", "sin datos", "unidentified".
NONE_PHRASE = re.compile(
    r"(no|none|kein\w*|aucun\w*|pas d[e'’]|sans|sin|ning[uú]n\w*|nessun\w*|nenhum\w*|sem|senza|geen"
    r"|ingen|inga|inget|brak|žádn\w*|bez|без|нет|ohne|without|hiçbir)[ ’'].+"
    r"|(leer|fehl)(bild|foto|aufnahme|auslös)\w*|leere[sr]? (bild|foto|aufnahme)"
    r"|(empty|blank|false) (image|photo|picture|frame|shot|trigger)\w*"
    r"|(image|photo|foto|imagen|imagem|immagine|cuadro) (vide|vac[ií][ao]|vazia|vuota)"
)
UNKNOWN_PHRASE = re.compile(
    r"(not|non|nicht|weiß|weiss|cannot|can't|can’t|could not|unable|don't|ikke|inte|niet|nie|не|não"
    r"|je ne|to be|pas|ei) .*|[a-z]/[a-z]|[未待]\w+"
    r"|(à|zu|da|por|do|to|att|te|a|needs?|re)[ -]?(vérif|verif|prüf|pruef|revi|sprawdz|check"
    r"|confirm|kontroll|défin|defin|déterm|determ|anota|annot)\w*"
    r"|un(identif|class|assign|specif|certain|determin|decid|sort|label|mark|known|tag|recogni|categor|read"
    r"|clear|annot)\w*( .+)?|(indet|indét|undet|unbest|unbekannt"
    r"|desconocid|inconnu|sconosciut|неопред|неизв|neurčen|neznám|nieokr|niezn|onbeken|onduid|okänd"
    r"|ukjen|ukend|tuntemat|ismeret|bilinm|necunosc)\w*\.?( .+)?|#[\w/]+[!?]|[^\w\s]{1,3}|x{3,5}"
)
WORDS = dict.fromkeys(NONE_WORDS, "none") | dict.fromkeys(UNKNOWN_WORDS, "unknown")
SURELY_NO_LABEL = _listed("nan, null, na, n.a., #n/a, n/a, k.a., -1, ?, ??, -, --")


def no_label(text: str) -> str:
    """Return "none" or "unknown" for a text that may say so and be no label, else "".

    >>> [no_label(text) for text in ("No animal", "unidentified bird", "#REF!", "nothing", "dog")]
    ['none', 'unknown', 'unknown', 'none', '']
    """
    word = text.casefold()
    if word in WORDS:
        return WORDS[word]
    if word in ABSENT and (len(word) > 2 or word == "no"):
        return "none"
    if NONE_PHRASE.fullmatch(word):
        return "none"
    sign = not any(map(str.isalnum, word))
    emoji = sign and any(unicodedata.category(letter) == "So" for letter in word)
    return "unknown" if UNKNOWN_PHRASE.fullmatch(word) and not emoji else ""


def record_level(name: str) -> int:
    """Return 2 for the name of a record such as a date, 1 where it may be a label too, else 0.

    >>> [record_level(name) for name in ("patient_id", "Unnamed: 0", "is_train", "dog")]
    [2, 2, 2, 0]
    >>> [record_level(name) for name in ("construction site", "date palm", "weather")]
    [1, 1, 1]
    """
    whole, parts = folded(name), name_parts(name)
    if whole in RECORDS or re.fullmatch(r"unnamed\d+", whole):
        return 2
    known = [part in RECORDS or part.rstrip("0123456789") in RECORDS for part in parts]
    if len(parts) > 1 and any(known) and whole not in MAYBE_RECORDS:
        surely = all(part in RECORD_WORDS or part.isdigit() for part in parts)
        surely &= " " not in name.strip() or parts[-1] in RECORDS  # "group photo" may be a label
        ends = parts[-1] in ("id", "ids", "url", "uuid", "date", "notes", "timestamp")
        return 2 if surely or ends else 1
    return 1 if any(part in MAYBE_RECORDS for part in parts) else 0
